-- title: Every change of a spec names who and why
-- hop: operators
-- severity: warning
--
-- Every version of a spec after the first names who asked for it, and the reason. `tidegate` and the console write both.
SELECT
  CASE WHEN changed_by IS NULL AND version > 1 THEN 'finding' ELSE 'ok' END AS verdict,
  job_id AS job, topic, partition, offset, at, concat('version ', version, ' names nobody') AS found,
  'who asked for it, and why' AS expected
FROM spec_versions
