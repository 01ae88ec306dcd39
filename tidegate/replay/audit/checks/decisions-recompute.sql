-- title: Decisions recompute to the same bytes
-- hop: snapshot to decision
-- severity: error
-- invariant: I9
--
-- The engine makes every decision again from its snapshot, the spec of the keyframes, and what the decider observed.
-- The bytes must be the same. The first difference of each job is named; later ones may follow from it. Decisions
-- before the first keyframe, and those of another engine version, are not provable here.
SELECT verdict, job, 'decisions' AS topic, partition, offset, at, found, expected, n FROM recomputed
