-- title: Ids follow from contents
-- hop: topics
-- severity: error
--
-- The id of a decision is a function of its job, snapshot, spec version and engine version; that of a result, of its
-- command, phase and attempt. (A snapshot with a wrong id is unreadable.) An id that does not follow was made up.
SELECT
  CASE WHEN id = made THEN 'ok' ELSE 'finding' END AS verdict,
  job_id AS job, topic, partition, offset, at, id AS found, made AS expected
FROM (
  SELECT topic, partition, offset, at, job_id, decision_id AS id,
    tidegate_id(array('decision', job_id, snapshot_id, CAST(spec_version AS STRING), engine_version)) AS made
  FROM decisions
  UNION ALL
  SELECT topic, partition, offset, at, job_id, result_id,
    tidegate_id(array('result', command_id, phase, CAST(attempt AS STRING)))
  FROM results
)
