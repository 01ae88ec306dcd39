-- title: Decisions saw the results that there are
-- hop: snapshot to decision
-- severity: error
--
-- A decision records the results it took in, and recomputing takes them from there. Each of them is on the results topic,
-- with the same phase, size, code and time. One that is not was put into the decision.
SELECT
  CASE
    WHEN result.result_id IS NULL AND seen.at < (SELECT complete_from FROM kept WHERE topic = 'results')
      THEN 'not provable'
    WHEN result.phase = seen.phase AND result.parallelism = seen.parallelism AND result.code = seen.code
      AND result.done_at = seen.at THEN 'ok'
    ELSE 'finding'
  END AS verdict,
  decision.job_id AS job, decision.topic, decision.partition, decision.offset, decision.decided_at AS at,
  concat('took in ', seen.kind, ' ', seen.phase, ' at ', seen.parallelism, ' slots, ', seen.code) AS found,
  coalesce(concat('result ', result.kind, ' ', result.phase, ' at ', result.parallelism, ' slots, ', result.code),
    concat('result ', seen.result_id, ' on the topic')) AS expected
FROM (SELECT *, explode(seen_results) AS seen FROM decisions) AS decision
LEFT JOIN (SELECT *, row_number() OVER (PARTITION BY result_id ORDER BY offset) AS number FROM results) AS result
  ON result.result_id = decision.seen.result_id AND result.number = 1
