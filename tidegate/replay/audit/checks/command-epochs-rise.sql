-- title: Epochs of commands rise
-- hop: decision to command
-- severity: error
-- invariant: I5
--
-- The epoch of a command is the sequence of its decision's snapshot, and rises with every command of a job. A command
-- with an older epoch after a newer one was replayed or reordered.
SELECT
  CASE
    WHEN epoch < highest OR (epoch = highest AND command_id <> newest) THEN 'finding'
    WHEN epoch <> coalesce(decision.sequence, epoch) THEN 'finding'
    ELSE 'ok'
  END AS verdict,
  command.job_id AS job, topic, partition, offset, issued_at AS at, concat('epoch ', epoch) AS found,
  concat('above ', highest, coalesce(concat(', and ', decision.sequence), '')) AS expected
FROM (
  SELECT *,
    max(epoch) OVER (
      PARTITION BY job_id ORDER BY partition, offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest,
    lag(command_id) OVER (PARTITION BY job_id ORDER BY partition, offset) AS newest
  FROM commands
) AS command
LEFT JOIN (SELECT DISTINCT decision_id, sequence FROM decisions) AS decision
  ON decision.decision_id = command.command_id
