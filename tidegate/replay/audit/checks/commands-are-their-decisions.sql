-- title: Every command is its decision's
-- hop: decision to command
-- severity: error
--
-- A command on the topic equals the one in its decision: kind, sizes, way, epoch, times, spec version, reason. A
-- decision that was made twice may have ordered its command twice, each with its own times.
SELECT
  CASE WHEN any_same THEN 'ok' ELSE 'finding' END AS verdict,
  job_id AS job, topic, partition, offset, issued_at AS at, to_json(command) AS found, to_json(decided) AS expected
FROM (
  SELECT command.job_id, command.topic, command.partition, command.offset, command.issued_at, command.command,
    any_value(decision.command) AS decided, bool_or(command.command <=> decision.command) AS any_same
  FROM commands AS command
  JOIN decisions AS decision ON decision.decision_id = command.command_id
  GROUP BY ALL
)
