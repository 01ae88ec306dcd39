-- title: No command is without a decision
-- hop: decision to command
-- severity: error
--
-- The id of a command is that of the decision that ordered it. A command of a decision that is not on the topic came
-- from somebody else, unless retention has removed the decision.
SELECT
  CASE
    WHEN decision.decision_id IS NOT NULL THEN 'ok'
    WHEN command.issued_at < (SELECT complete_from FROM kept WHERE topic = 'decisions') THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  command.job_id AS job, command.topic, command.partition, command.offset, command.issued_at AS at,
  concat(command.kind, ' to ', command.to_parallelism, ' of decision ', command.command_id) AS found,
  'a decision of that id' AS expected
FROM commands AS command
LEFT JOIN (SELECT DISTINCT decision_id FROM decisions) AS decision ON decision.decision_id = command.command_id
