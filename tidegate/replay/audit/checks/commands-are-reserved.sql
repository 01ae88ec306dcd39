-- title: No command goes out without Redis
-- hop: snapshot to decision
-- severity: error
-- invariant: I6
--
-- A command goes out only after its job's cooldown and its slots have been reserved in Redis. Its decision says that
-- Redis answered and that the reservation was taken.
SELECT
  CASE WHEN redis = 'ok' AND NOT reservation_refused THEN 'ok' ELSE 'finding' END AS verdict,
  job_id AS job, topic, partition, offset, decided_at AS at,
  concat('Redis: ', redis, CASE WHEN reservation_refused THEN ', reservation refused' ELSE '' END) AS found,
  'Redis: ok' AS expected
FROM decisions
WHERE command IS NOT NULL AND command.from_parallelism <> command.to_parallelism
