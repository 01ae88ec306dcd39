-- title: Every snapshot is decided once
-- hop: snapshot to decision
-- severity: warning
--
-- A decider that dies between publishing a decision and storing its state makes that decision again. This is allowed
-- and harmless: the ids are the same, unless another version makes it, and the command takes effect once. A person should
-- know how often it happened.
SELECT
  CASE WHEN number = 1 THEN 'ok' ELSE 'finding' END AS verdict,
  job_id AS job, topic, partition, offset, decided_at AS at,
  concat('decision ', number, ' on the snapshot of sequence ', sequence) AS found, 'one decision' AS expected
FROM (
  SELECT *, row_number() OVER (PARTITION BY job_id, sequence ORDER BY partition, offset) AS number FROM decisions
)
