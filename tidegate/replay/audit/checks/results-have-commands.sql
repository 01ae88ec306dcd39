-- title: No result is without a command
-- hop: command to results
-- severity: error
--
-- Whatever was done to a job was done for a command on the topic, unless retention has removed it.
SELECT
  CASE
    WHEN command.command_id IS NOT NULL THEN 'ok'
    WHEN result.done_at < (SELECT complete_from FROM kept WHERE topic = 'commands') THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  result.job_id AS job, result.topic, result.partition, result.offset, result.done_at AS at,
  concat(result.kind, ' ', result.phase, ' of command ', result.command_id) AS found,
  'a command of that id' AS expected
FROM results AS result
LEFT JOIN (SELECT DISTINCT command_id FROM commands) AS command ON command.command_id = result.command_id
