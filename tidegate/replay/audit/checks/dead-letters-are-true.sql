-- title: Every dead letter holds its record
-- hop: topics
-- severity: error
--
-- A dead letter names the place of its record and holds the record's bytes. They are compared with what is at that
-- place, unless retention has removed it, or the letter came without the bytes because it would have been too large.
SELECT
  CASE
    WHEN letter.value_base64 IS NULL THEN 'ok'
    WHEN record.topic IS NULL THEN 'not provable'
    WHEN unbase64(letter.value_base64) <=> record.value THEN 'ok'
    ELSE 'finding'
  END AS verdict,
  CAST(NULL AS STRING) AS job, letter.topic, letter.partition, letter.offset, letter.at,
  concat(letter.of_topic, ', partition ', letter.of_partition, ', offset ', letter.of_offset,
    CASE WHEN record.topic IS NULL THEN ' is not held' ELSE ' has other bytes' END) AS found,
  'the bytes of its record' AS expected
FROM letters AS letter
LEFT JOIN records AS record
  ON letter.of_topic = concat((SELECT prefix FROM source), record.topic)
  AND letter.of_partition = record.partition AND letter.of_offset = record.offset
