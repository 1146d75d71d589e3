-- What capture may learn about rows that are there: whether they are the dead
-- letters it holds in its hands, and nothing else.

SELECT set_config('search_path', current_setting('search_path') || ', pg_temp', true);

-- geodlq_standing looks dead letters up by dlq_id. Of each that has a row it returns
-- its place in the arrays, and whether the row is the same dead letter: it came from
-- the same record of the same object, or has the same batch, feature id and payload
-- (as SHA-256), in which case a pipeline wrote one dead letter twice. None of these
-- is ever changed by a replay or a person.
CREATE FUNCTION geodlq_standing(ids uuid[], objects text[], records bigint[], batches text[], features text[], digests bytea[],
    OUT place bigint, OUT same boolean) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT l.place,
        CASE WHEN f.source_object = l.object AND f.source_record = l.record THEN true
             ELSE coalesce(f.batch_id = l.batch AND f.feature_id = l.feature
                           AND sha256(coalesce(f.payload_raw, convert_to(f.feature_geojson, 'UTF8'), '')) = l.digest, false)
        END
    FROM unnest(ids, objects, records, batches, features, digests) WITH ORDINALITY
         AS l (dlq_id, object, record, batch, feature, digest, place)
    JOIN failed_geotasks f ON f.dlq_id = l.dlq_id
$$;
