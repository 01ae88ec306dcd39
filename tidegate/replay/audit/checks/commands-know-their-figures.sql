-- title: No size changes on missing figures
-- hop: snapshot to decision
-- severity: error
-- invariant: I12
--
-- Unknown is never zero: while end offsets, committed offsets, progress or the state of the job are missing, only an
-- operator changes the size of a running job.
SELECT
  CASE WHEN size(array_intersect(shot.missing, array(
      'end_offsets', 'committed_offsets', 'progress', 'job_state'))) > 0 THEN 'finding' ELSE 'ok' END AS verdict,
  decision.job_id AS job, decision.topic, decision.partition, decision.offset, decision.decided_at AS at,
  concat('changes the size although ', array_join(shot.missing, ', '), ' is missing') AS found,
  'no change' AS expected
FROM decisions AS decision
JOIN snapshots AS shot ON shot.snapshot_id = decision.snapshot_id
WHERE decision.command.kind = 'rescale' AND NOT decision.command.manual
  AND decision.command.from_parallelism <> decision.command.to_parallelism
