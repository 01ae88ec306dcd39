-- title: Every decision's command is published
-- hop: decision to command
-- severity: error
-- invariant: I2
--
-- A decision with a command is followed by that command on its topic. Only at the very end of the record it may still
-- be on its way. A decider that dies before it has published the command makes the decision again. Then that one counts.
-- It may order nothing, because the snapshot is too old by then, or something else, if a newer version decides.
SELECT
  CASE
    WHEN command.command_id IS NOT NULL OR again.last > decision.offset THEN 'ok'
    WHEN decision.decided_at < (SELECT complete_from FROM kept WHERE topic = 'commands') THEN 'not provable'
    WHEN decision.at > (SELECT max(at) FROM places) - INTERVAL 10 SECONDS THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  decision.job_id AS job, decision.topic, decision.partition, decision.offset, decision.decided_at AS at,
  concat(decision.command.kind, ' to ', decision.command.to_parallelism, ' is not on the topic') AS found,
  concat('command ', decision.decision_id) AS expected
FROM decisions AS decision
LEFT JOIN (SELECT DISTINCT command_id FROM commands) AS command ON command.command_id = decision.decision_id
LEFT JOIN (SELECT snapshot_id, partition, max(offset) AS last FROM decisions GROUP BY snapshot_id, partition) AS again
  ON again.snapshot_id = decision.snapshot_id AND again.partition = decision.partition
WHERE decision.command IS NOT NULL
