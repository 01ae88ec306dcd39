-- title: Nothing changes inside a cooldown
-- hop: command to results
-- severity: error
-- invariant: I6
--
-- Two changes of a job's size are at least the cooldown apart, counted from order to order, as the spec of the second
-- one sets it for its direction and way. This is measured here from the topics alone, so it holds even if Redis was lost.
-- The same size again is a new application, not a change of size.
SELECT
  CASE
    WHEN limit_seconds IS NULL THEN 'not provable'
    WHEN age >= limit_seconds THEN 'ok'
    ELSE 'finding'
  END AS verdict,
  job_id AS job, topic, partition, offset, issued_at AS at,
  concat('changed to ', to_parallelism, ' slots ', round(age, 3), ' s after the change before',
    CASE WHEN limit_seconds IS NULL THEN concat('; version ', spec_version, ' of the spec is not held') ELSE '' END)
    AS found,
  concat('at least ', limit_seconds, ' s') AS expected
FROM (
  SELECT command.*,
    (unix_micros(issued_at) - unix_micros(issued_before)) / 1e6 AS age,
    CASE WHEN to_parallelism > from_parallelism THEN spec.cooldowns[coalesce(way, 'restart')].up
      ELSE spec.cooldowns[coalesce(way, 'restart')].down END AS limit_seconds
  FROM (
    SELECT *, lag(issued_at) OVER (PARTITION BY job_id ORDER BY issued_at) AS issued_before
    FROM (SELECT *, row_number() OVER (PARTITION BY command_id ORDER BY partition, offset) AS number FROM commands)
    WHERE kind = 'rescale' AND number = 1
  ) AS command
  LEFT JOIN spec_versions AS spec ON spec.job_id = command.job_id AND spec.version = command.spec_version
      AND command.issued_at >= spec.since AND command.issued_at < spec.until
  WHERE issued_before IS NOT NULL AND from_parallelism <> to_parallelism
    AND EXISTS (SELECT 1 FROM results AS result WHERE result.command_id = command.command_id
      AND result.phase NOT IN ('accepted', 'rejected'))
)
