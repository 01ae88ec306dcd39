-- title: No command comes from an old snapshot
-- hop: snapshot to decision
-- severity: error
-- invariant: I8
--
-- A decision with a command is made soon after its snapshot was measured: within the limit of the guard `fresh`, as the
-- spec sets it, plus the interval.
SELECT
  CASE
    WHEN spec.fresh_seconds IS NULL THEN 'not provable'
    WHEN age <= spec.fresh_seconds + shot.interval_seconds THEN 'ok'
    ELSE 'finding'
  END AS verdict,
  decision.job_id AS job, decision.topic, decision.partition, decision.offset, decision.decided_at AS at,
  concat('decided ', round(age, 3), ' s after the snapshot') AS found,
  concat('at most ', spec.fresh_seconds + shot.interval_seconds, ' s') AS expected
FROM decisions AS decision
JOIN snapshots AS shot ON shot.snapshot_id = decision.snapshot_id
LEFT JOIN spec_versions AS spec ON spec.job_id = decision.job_id AND spec.version = decision.spec_version
  AND decision.decided_at >= spec.since AND decision.decided_at < spec.until
LATERAL VIEW explode(array((unix_micros(decision.decided_at) - unix_micros(shot.observed_at)) / 1e6)) each AS age
WHERE decision.command IS NOT NULL AND decision.command.from_parallelism <> decision.command.to_parallelism
