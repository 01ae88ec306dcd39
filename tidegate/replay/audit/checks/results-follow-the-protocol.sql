-- title: Results take a path that the protocol allows
-- hop: command to results
-- severity: error
-- invariant: I4
--
-- The actuator is a state machine. In particular, a new driver starts only after the old ones have stopped, or after
-- the old one has handed over. The phases of a command, in the order of its results, follow each other as the machine
-- allows, and attempts do not fall. Where the first results are no longer held, the first one is not provable.
SELECT
  CASE
    WHEN contains(allowed.phases, concat(',', phase, ',')) AND coalesce(attempt_before, 1) <= attempt AND attempt <= 3
      THEN 'ok'
    WHEN phase_before IS NULL AND done_at < (SELECT complete_from FROM kept WHERE topic = 'results')
      THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  job_id AS job, topic, partition, offset, done_at AS at,
  concat(coalesce(phase_before, 'nothing'), ' -> ', phase, ', attempt ', coalesce(attempt_before, 1), ' -> ', attempt)
    AS found,
  concat('one of ', trim(BOTH ',' FROM allowed.phases)) AS expected
FROM (
  SELECT *, lag(phase) OVER (PARTITION BY command_id ORDER BY partition, offset) AS phase_before,
    lag(attempt) OVER (PARTITION BY command_id ORDER BY partition, offset) AS attempt_before
  FROM results
)
LEFT JOIN (
  SELECT before, concat(',', array_join(array_sort(collect_list(after)), ','), ',') AS phases
  FROM successions GROUP BY before
) AS allowed ON allowed.before <=> phase_before
