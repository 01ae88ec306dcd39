-- title: Nothing begins after a command has expired
-- hop: command to results
-- severity: error
-- invariant: I8
--
-- A command that nobody has started by the time it expires is void: it is rejected, and nothing happens.
SELECT
  CASE WHEN result.done_at < command.expires_at THEN 'ok' ELSE 'finding' END AS verdict,
  result.job_id AS job, result.topic, result.partition, result.offset, result.done_at AS at,
  concat('accepted at ', result.done_at) AS found, concat('before ', command.expires_at) AS expected
FROM results AS result
JOIN (SELECT command_id, max(expires_at) AS expires_at FROM commands GROUP BY command_id) AS command
  ON command.command_id = result.command_id
WHERE result.phase = 'accepted'
