-- title: Every command by hand was asked for
-- hop: operators
-- severity: error
--
-- A command that says it was given by hand was decided with a spec that holds the request: the guards may have changed
-- the size, but the request is there, with its reason.
SELECT
  CASE
    WHEN spec.version IS NULL THEN 'not provable'
    WHEN spec.manual_id IS NULL OR spec.manual_at > command.issued_at + INTERVAL 1 MINUTE THEN 'finding'
    ELSE 'ok'
  END AS verdict,
  command.job_id AS job, command.topic, command.partition, command.offset, command.issued_at AS at,
  concat('version ', command.spec_version, CASE WHEN spec.version IS NULL THEN ' of the spec is not held'
    ELSE ' of the spec asks for no size' END) AS found,
  'a request in the spec' AS expected
FROM commands AS command
LEFT JOIN spec_versions AS spec ON spec.job_id = command.job_id AND spec.version = command.spec_version
    AND command.issued_at >= spec.since AND command.issued_at < spec.until
WHERE command.manual
