-- title: Snapshots follow from Spark's event logs
-- hop: log to snapshot
-- severity: error
-- needs: event logs
--
-- Every snapshot is cut again from the event log of the run it names: micro-batches, committed offsets, tasks, state.
-- A difference means that the snapshot or the log was changed. A snapshot whose log is gone is not provable. End
-- offsets, slots and the pool do not come from event logs and are not compared.
SELECT
  verdict, job_id AS job, 'snapshots' AS topic, partition, offset, timestamp_seconds(sequence) AS at,
  concat(figure, CASE WHEN verdict = 'finding' THEN ' is ' ELSE '' END, recorded) AS found,
  concat(CASE WHEN verdict = 'finding' THEN 'the log says ' ELSE '' END, cut) AS expected
FROM cuts
