-- title: Specs are those that were decided with
-- hop: operators
-- severity: error
--
-- Keyframes hold the whole spec that a decision was made with. It equals the version on the `jobs` topic, where that
-- version is still held. One that was written only after the decision is of a job that was removed and added again.
SELECT
  CASE
    WHEN written.text IS NULL OR written.text = used.text THEN 'ok'
    WHEN used.at < written.at - INTERVAL 1 MINUTE THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  used.job_id AS job, used.topic, used.partition, used.offset, used.at,
  concat('version ', used.version, ' in the keyframe: ', used.text) AS found,
  concat('version ', written.version, ' on jobs: ', written.text) AS expected
FROM (SELECT * FROM specs WHERE topic = 'decisions') AS used
LEFT JOIN (
  SELECT job_id, version, any_value(text) AS text, min(at) AS at FROM specs WHERE topic = 'jobs' AND NOT removed
  GROUP BY job_id, version HAVING count(DISTINCT text) = 1
) AS written ON written.job_id = used.job_id AND written.version = used.version
