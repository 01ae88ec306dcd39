-- title: Every decision's command is published
-- hop: decision to command
-- severity: error
-- invariant: I2
--
-- A decision with a command is followed by that command on its topic. Only at the very end of the record it may still
-- be on its way. A decider that dies before it has published the command makes the decision again, and may then order
-- nothing, because the snapshot is too old by then.
SELECT
  CASE
    WHEN command.command_id IS NOT NULL OR again.decision_id IS NOT NULL THEN 'ok'
    WHEN decision.decided_at < (SELECT complete_from FROM kept WHERE topic = 'commands') THEN 'not provable'
    WHEN decision.at > (SELECT max(at) FROM places) - INTERVAL 10 SECONDS THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  decision.job_id AS job, decision.topic, decision.partition, decision.offset, decision.decided_at AS at,
  concat(decision.command.kind, ' to ', decision.command.to_parallelism, ' is not on the topic') AS found,
  concat('command ', decision.decision_id) AS expected
FROM decisions AS decision
LEFT JOIN (SELECT DISTINCT command_id FROM commands) AS command ON command.command_id = decision.decision_id
LEFT JOIN (SELECT DISTINCT decision_id FROM decisions WHERE command IS NULL) AS again
  ON again.decision_id = decision.decision_id
WHERE decision.command IS NOT NULL
