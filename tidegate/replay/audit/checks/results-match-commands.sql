-- title: Results are of their command
-- hop: command to results
-- severity: error
-- invariant: I5
--
-- A result has the job, the kind and the epoch of its command. The first attempt aims at the ordered size; a later one
-- may go back, and the cluster may grant fewer slots.
SELECT
  CASE
    WHEN result.job_id <> command.job_id OR result.kind <> command.kind OR result.epoch <> command.epoch THEN 'finding'
    WHEN result.phase IN ('accepted', 'starting') AND result.attempt = 1
      AND result.parallelism <> command.to_parallelism THEN 'finding'
    ELSE 'ok'
  END AS verdict,
  result.job_id AS job, result.topic, result.partition, result.offset, result.done_at AS at,
  concat(result.job_id, ': ', result.kind, ' to ', result.parallelism, ', epoch ', result.epoch) AS found,
  concat(command.job_id, ': ', command.kind, ' to ', command.to_parallelism, ', epoch ', command.epoch) AS expected
FROM results AS result
JOIN (SELECT DISTINCT command_id, job_id, kind, epoch, to_parallelism FROM commands) AS command
  ON command.command_id = result.command_id
