-- title: Every command ends once
-- hop: command to results
-- severity: error
-- invariant: I2
--
-- Every command ends as verified, rolled back, failed or rejected, once, and nothing follows its end. A job's newest
-- command may still be under way when the record ends: that is not provable.
SELECT
  CASE
    WHEN ends = 1 AND NOT goes_on THEN 'ok'
    WHEN ends > 1 OR goes_on THEN 'finding'
    WHEN command.at < (SELECT complete_from FROM kept WHERE topic = 'results') THEN 'not provable'
    WHEN command.epoch = command.newest
      AND command.expires_at + INTERVAL 30 MINUTES > (SELECT max(at) FROM places) THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  command.job_id AS job, command.topic, command.partition, command.offset, command.issued_at AS at,
  concat(command.kind, ' to ', command.to_parallelism, ': ', coalesce(ends, 0), ' ends',
    coalesce(concat('; phases: ', phases), '; no result'), CASE WHEN goes_on THEN '; goes on after its end' ELSE '' END)
    AS found,
  'one end' AS expected
FROM (
  SELECT *, max(epoch) OVER (PARTITION BY job_id) AS newest
  FROM (SELECT *, row_number() OVER (PARTITION BY command_id ORDER BY partition, offset) AS number FROM commands)
  WHERE number = 1
) AS command
LEFT JOIN (
  SELECT command_id, count_if(terminal) AS ends, max_by(NOT terminal, offset) AND bool_or(terminal) AS goes_on,
    array_join(transform(array_sort(collect_list(struct(offset, phase))), each -> each.phase), ', ') AS phases
  FROM results GROUP BY command_id
) AS done ON done.command_id = command.command_id
