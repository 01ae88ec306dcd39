-- title: What an operator asked for is what was changed
-- hop: operators
-- severity: error
--
-- A change of what Tidegate may do to a job (its bounds, its mode, whether it runs, a size by hand) names who asked for
-- it, and when: not after it was published (with a minute for the clocks), and not before the version that it changed. A
-- size by hand is of the same minute as its change. Otherwise the change was written by somebody else.
SELECT
  CASE
    WHEN before.version IS NULL THEN 'ok'
    WHEN spec.control = before.control THEN 'ok'
    WHEN spec.changed_by IS NULL THEN 'finding'
    WHEN spec.changed_at > spec.at + INTERVAL 1 MINUTE THEN 'finding'
    WHEN before.changed_at IS NOT NULL AND spec.changed_at < before.changed_at THEN 'finding'
    WHEN spec.manual_at IS NOT NULL AND NOT spec.manual_id <=> before.manual_id
      AND abs(unix_seconds(spec.manual_at) - unix_seconds(spec.changed_at)) > 60 THEN 'finding'
    ELSE 'ok'
  END AS verdict,
  spec.job_id AS job, spec.topic, spec.partition, spec.offset, spec.at,
  concat('version ', spec.version, ' by ', coalesce(spec.changed_by, 'nobody'),
    coalesce(concat(' at ', spec.changed_at), ''), ': ', spec.control) AS found,
  concat('a named change of version ', before.version, ': ', before.control) AS expected
FROM spec_versions AS spec
LEFT JOIN spec_versions AS before ON before.job_id = spec.job_id AND before.version = spec.version - 1
  AND spec.at >= before.since AND spec.at < before.until
