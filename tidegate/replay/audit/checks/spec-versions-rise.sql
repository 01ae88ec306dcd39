-- title: Versions of a spec rise
-- hop: operators
-- severity: error
--
-- Every change of a job is a new version of its spec, and the highest one holds. A version that comes again with other
-- contents, or after a higher one, was written past `tidegate apply`. A job that was removed may begin again.
SELECT
  CASE
    WHEN version < highest THEN 'finding'
    WHEN version = highest AND NOT contains(texts_before, text) THEN 'finding'
    ELSE 'ok'
  END AS verdict,
  job_id AS job, topic, partition, offset, at, concat('version ', version) AS found,
  concat('above ', highest) AS expected
FROM (
  SELECT *, max(version) OVER before AS highest,
    array_join(collect_list(text) OVER before, ' ') AS texts_before
  FROM (
    SELECT *, count_if(removed) OVER (PARTITION BY job_id ORDER BY offset) AS life FROM specs WHERE topic = 'jobs'
  )
  WHERE NOT removed
  WINDOW before AS (PARTITION BY job_id, life ORDER BY offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
