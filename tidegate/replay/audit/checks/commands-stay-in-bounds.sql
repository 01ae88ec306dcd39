-- title: Sizes stay within the spec's bounds
-- hop: snapshot to decision
-- severity: error
-- invariant: I7
--
-- A command's size lies between the minimum and the maximum of the spec version it was decided on, and is a whole
-- number of executors. A stop has size 0. The same size again is a new application, not a change of size.
SELECT
  CASE
    WHEN kind = 'stop' THEN CASE WHEN to_parallelism = 0 THEN 'ok' ELSE 'finding' END
    WHEN kind = 'rescale' AND from_parallelism = to_parallelism THEN 'ok'
    WHEN spec.smallest IS NULL THEN 'not provable'
    WHEN to_parallelism BETWEEN spec.smallest AND spec.largest AND to_parallelism % spec.cores = 0 THEN 'ok'
    ELSE 'finding'
  END AS verdict,
  command.job_id AS job, command.topic, command.partition, command.offset, issued_at AS at,
  concat(kind, ' to ', to_parallelism,
    CASE WHEN spec.smallest IS NULL THEN concat('; version ', spec_version, ' of the spec is not held') ELSE '' END)
    AS found,
  concat(spec.smallest, ' to ', spec.largest, ', in steps of ', spec.cores) AS expected
FROM commands AS command
LEFT JOIN spec_versions AS spec ON spec.job_id = command.job_id AND spec.version = command.spec_version
    AND command.issued_at >= spec.since AND command.issued_at < spec.until
