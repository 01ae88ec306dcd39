-- title: Commands are published as often as they were decided
-- hop: decision to command
-- severity: error
-- invariant: I3
--
-- A command is published once per decision with its id, and that is once, unless a decider died and decided again.
SELECT
  CASE WHEN number <= coalesce(decision.times, 1) THEN 'ok' ELSE 'finding' END AS verdict,
  command.job_id AS job, command.topic, command.partition, command.offset, command.issued_at AS at,
  concat('published ', number, ' times, decided ', coalesce(decision.times, 0), ' times') AS found,
  'published once' AS expected
FROM (SELECT *, row_number() OVER (PARTITION BY command_id ORDER BY partition, offset) AS number FROM commands)
  AS command
LEFT JOIN (SELECT decision_id, count(*) AS times FROM decisions GROUP BY decision_id) AS decision
  ON decision.decision_id = command.command_id
