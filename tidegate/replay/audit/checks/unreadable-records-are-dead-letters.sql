-- title: Every unreadable record is in the dead letters
-- hop: topics
-- severity: error
-- invariant: I1
--
-- A record that a service cannot read ends in the dead letters, byte for byte. Nobody reads decisions back, so an
-- unreadable decision has no letter. A record that the service had not reached when the record ends is not provable.
SELECT
  CASE
    WHEN letter.letter_id IS NOT NULL THEN 'ok'
    WHEN bad.at > (SELECT max(at) FROM places) - INTERVAL 60 SECONDS THEN 'not provable'
    ELSE 'finding'
  END AS verdict,
  CAST(NULL AS STRING) AS job, bad.topic, bad.partition, bad.offset, bad.at,
  concat('no dead letter of this record (', bad.code, ')') AS found, 'a dead letter' AS expected
FROM unreadable AS bad
LEFT JOIN (SELECT DISTINCT letter_id, of_topic, of_partition, of_offset FROM letters) AS letter
  ON letter.of_topic = concat((SELECT prefix FROM source), bad.topic)
  AND letter.of_partition = bad.partition AND letter.of_offset = bad.offset
WHERE bad.topic IN ('jobs', 'snapshots', 'commands', 'results')
