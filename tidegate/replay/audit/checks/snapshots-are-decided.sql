-- title: Every snapshot is decided, or in the dead letters
-- hop: snapshot to decision
-- severity: error
-- invariant: I1
--
-- Every snapshot ends as a decision or as a dead letter. One that comes after a later snapshot is dropped. Behind the
-- job's newest decision, the decider may not have come so far: that is not provable.
SELECT
  CASE
    WHEN decision.snapshot_id IS NOT NULL OR letter.letter_id IS NOT NULL THEN 'ok'
    WHEN shot.sequence < shot.highest THEN 'ok'
    WHEN newest.sequence IS NULL OR shot.sequence > newest.sequence THEN 'not provable'
    WHEN shot.observed_at < (SELECT complete_from FROM kept WHERE topic = 'decisions') THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  shot.job_id AS job, shot.topic, shot.partition, shot.offset, shot.observed_at AS at,
  concat('sequence ', shot.sequence, ' has no decision') AS found, 'a decision, or a dead letter' AS expected
FROM (
  SELECT *, max(sequence) OVER (
    PARTITION BY job_id, partition ORDER BY offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
  FROM snapshots
) AS shot
LEFT JOIN (SELECT DISTINCT snapshot_id FROM decisions) AS decision ON decision.snapshot_id = shot.snapshot_id
LEFT JOIN (SELECT job_id, max(sequence) AS sequence FROM decisions GROUP BY job_id) AS newest
  ON newest.job_id = shot.job_id
LEFT JOIN (SELECT DISTINCT letter_id, of_topic, of_partition, of_offset FROM letters) AS letter
  ON letter.of_topic = concat((SELECT prefix FROM source), 'snapshots')
  AND letter.of_partition = shot.partition AND letter.of_offset = shot.offset
