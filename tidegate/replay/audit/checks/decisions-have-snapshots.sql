-- title: Every decision has its snapshot
-- hop: snapshot to decision
-- severity: error
--
-- A decision names the snapshot it was made on. That snapshot is on the topic, unless retention has removed it: snapshots
-- are kept for a shorter time than decisions, so a partition may hold only the decisions of an old job.
SELECT
  CASE
    WHEN shot.snapshot_id IS NOT NULL THEN 'ok'
    WHEN decision.decided_at < (SELECT complete_from FROM kept WHERE topic = 'snapshots') THEN 'not provable'
    WHEN held.partition IS NULL THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  decision.job_id AS job, decision.topic, decision.partition, decision.offset, decision.decided_at AS at,
  concat('snapshot ', decision.snapshot_id, ' is not on the topic') AS found,
  concat('a snapshot of sequence ', decision.sequence) AS expected
FROM decisions AS decision
LEFT JOIN (SELECT DISTINCT snapshot_id FROM snapshots) AS shot ON shot.snapshot_id = decision.snapshot_id
LEFT JOIN (SELECT DISTINCT partition FROM places WHERE topic = 'snapshots') AS held
  ON held.partition = decision.partition
