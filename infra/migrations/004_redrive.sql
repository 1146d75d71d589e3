-- What people need when something is in quarantine: causes to count by, maps, and
-- redrive runs with what was decided by whom.

SELECT set_config('search_path', current_setting('search_path') || ', pg_temp', true);

-- geodlq_pattern is a message with what differs from row to row taken out: quoted
-- values, and every word with a digit in it (numbers, ids, dates, addresses), become
-- '#', a list of them one '#', brackets around it included. What is left is the
-- cause. ASCII classes and no look-around: PostgreSQL's matcher is ten times slower
-- with those.
CREATE FUNCTION geodlq_pattern(message text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
RETURN btrim(regexp_replace(regexp_replace(' ' || message,
    '"(?:[^"\\]|\\.)*"|[ (:=,[]''[^'']*''|[A-Za-z0-9_.:+/-]*[0-9][A-Za-z0-9_.:+/-]*', ' #', 'g'),
    '[][(){},; ]*#[][(){},; #]*', ' # ', 'g'));

-- geodlq_fingerprint names a cause: reason, rule and pattern of the message in 64
-- bits of SHA-256, hexadecimal. Null where nothing has failed.
CREATE FUNCTION geodlq_fingerprint(error_type text, failed_rule text, error text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN error_type IS NOT NULL OR failed_rule IS NOT NULL OR error IS NOT NULL THEN
    left(encode(sha256(convert_to(
        coalesce(error_type, '') || chr(31) || coalesce(failed_rule, '') || chr(31) || coalesce(geodlq_pattern(error), ''), 'UTF8')), 'hex'), 16)
END;

-- Stored, and computed only where one of its three inputs is written: a claim and
-- a cleared row do not pay for it.
ALTER TABLE failed_geotasks
    ADD COLUMN fingerprint text GENERATED ALWAYS AS (geodlq_fingerprint(error_type, failed_rule, error)) STORED;

CREATE INDEX failed_geotasks_fingerprint ON failed_geotasks (fingerprint, id)
    WHERE status = 'quarantined';

-- failure_groups: how many rows each cause has, by batch and status, so that "what is
-- broken" is no count over the queue. The triggers append differences, which
-- geodlq_fold_groups adds up; the view is exact whether or not they were. Texts that a
-- row does not have are empty here.
CREATE TABLE failure_groups (
    batch_id    text NOT NULL,
    status      text NOT NULL,
    error_type  text NOT NULL,
    failed_rule text NOT NULL,
    fingerprint text NOT NULL,
    n           bigint NOT NULL, -- below 0 for a moment when differences are folded out of order
    example     bigint,          -- failed_geotasks.id of the latest that came; it may have gone since
    PRIMARY KEY (batch_id, status, error_type, failed_rule, fingerprint)
);

-- failure_group_changes: differences that are not yet in failure_groups.
CREATE TABLE failure_group_changes (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch_id    text NOT NULL,
    status      text NOT NULL,
    error_type  text NOT NULL,
    failed_rule text NOT NULL,
    fingerprint text NOT NULL,
    n           bigint NOT NULL,
    example     bigint
);

CREATE VIEW failure_group_totals AS
    SELECT batch_id, status, error_type, failed_rule, fingerprint, sum(n)::bigint AS n, max(example) AS example
    FROM (SELECT batch_id, status, error_type, failed_rule, fingerprint, n, example FROM failure_groups
          UNION ALL
          SELECT batch_id, status, error_type, failed_rule, fingerprint, n, example FROM failure_group_changes) parts
    GROUP BY batch_id, status, error_type, failed_rule, fingerprint
    HAVING sum(n) > 0;

-- Like the ledger's: with their owner's rights, so that a role that may only insert
-- dead letters is counted too.

CREATE FUNCTION failure_groups_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO failure_group_changes (batch_id, status, error_type, failed_rule, fingerprint, n, example)
    SELECT batch_id, status, coalesce(error_type, ''), coalesce(failed_rule, ''), coalesce(fingerprint, ''), count(*), max(id)
    FROM new_rows
    GROUP BY batch_id, status, error_type, failed_rule, fingerprint;
    RETURN NULL;
END $$;

-- A claim moves no row from one group to another; its differences cancel out and
-- nothing is appended.
CREATE FUNCTION failure_groups_update() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO failure_group_changes (batch_id, status, error_type, failed_rule, fingerprint, n, example)
    SELECT batch_id, status, coalesce(error_type, ''), coalesce(failed_rule, ''), coalesce(fingerprint, ''), sum(n), max(id)
    FROM (SELECT batch_id, status, error_type, failed_rule, fingerprint, 1 AS n, id FROM new_rows
          UNION ALL
          SELECT batch_id, status, error_type, failed_rule, fingerprint, -1, NULL FROM old_rows) moved
    GROUP BY batch_id, status, error_type, failed_rule, fingerprint
    HAVING sum(n) <> 0;
    RETURN NULL;
END $$;

CREATE FUNCTION failure_groups_delete() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO failure_group_changes (batch_id, status, error_type, failed_rule, fingerprint, n)
    SELECT batch_id, status, coalesce(error_type, ''), coalesce(failed_rule, ''), coalesce(fingerprint, ''), -count(*)
    FROM old_rows
    GROUP BY batch_id, status, error_type, failed_rule, fingerprint;
    RETURN NULL;
END $$;

CREATE FUNCTION failure_groups_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM failure_groups;
    DELETE FROM failure_group_changes;
    RETURN NULL;
END $$;

CREATE TRIGGER failure_groups_insert AFTER INSERT ON failed_geotasks
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION failure_groups_insert();
CREATE TRIGGER failure_groups_update AFTER UPDATE ON failed_geotasks
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION failure_groups_update();
CREATE TRIGGER failure_groups_delete AFTER DELETE ON failed_geotasks
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION failure_groups_delete();
CREATE TRIGGER failure_groups_truncate AFTER TRUNCATE ON failed_geotasks
    FOR EACH STATEMENT EXECUTE FUNCTION failure_groups_truncate();

INSERT INTO failure_groups (batch_id, status, error_type, failed_rule, fingerprint, n, example)
SELECT batch_id, status, coalesce(error_type, ''), coalesce(failed_rule, ''), coalesce(fingerprint, ''), count(*), max(id)
FROM failed_geotasks
GROUP BY 1, 2, 3, 4, 5;

-- geodlq_fold_groups adds up to 100,000 differences to the groups and returns how many
-- it took. Calls at once take different ones.
CREATE FUNCTION geodlq_fold_groups() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    folded bigint;
BEGIN
    WITH taken AS (
        DELETE FROM failure_group_changes
        WHERE id IN (SELECT id FROM failure_group_changes ORDER BY id LIMIT 100000 FOR UPDATE SKIP LOCKED)
        RETURNING *
    ), summed AS (
        -- In the order of the key, so that two calls lock the groups in one order.
        INSERT INTO failure_groups AS g
        SELECT batch_id, status, error_type, failed_rule, fingerprint, sum(n), max(example)
        FROM taken
        GROUP BY batch_id, status, error_type, failed_rule, fingerprint
        ORDER BY batch_id, status, error_type, failed_rule, fingerprint
        ON CONFLICT (batch_id, status, error_type, failed_rule, fingerprint)
        DO UPDATE SET n = g.n + excluded.n, example = coalesce(excluded.example, g.example)
    )
    SELECT count(*) INTO folded FROM taken;
    IF folded > 0 THEN
        DELETE FROM failure_groups
        WHERE ctid = ANY (ARRAY(SELECT ctid FROM failure_groups WHERE n = 0 FOR UPDATE SKIP LOCKED));
    END IF;
    RETURN folded;
END $$;

-- geodlq_lonlat puts a source geometry on the map: two-dimensional, without curves, in
-- longitude and latitude (EPSG:4326). Null where it has no place there: no geometry,
-- no CRS, two that disagree, one that PROJ cannot transform, or a position outside the
-- world. It contains the errors PostGIS raises over one geometry, so that one row does
-- not take the whole map down. Not parallel safe: catching an error needs a subtransaction.
CREATE FUNCTION geodlq_lonlat(geom geometry, epsg integer) RETURNS geometry
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
DECLARE
    srid integer;
    g    geometry;
BEGIN
    IF geom IS NULL OR ST_IsEmpty(geom) THEN
        RETURN NULL;
    END IF;
    srid := ST_SRID(geom);
    IF srid = 0 THEN
        srid := coalesce(epsg, 0);
    ELSIF epsg <> srid AND epsg <> 0 THEN
        RETURN NULL;
    END IF;
    IF srid = 0 THEN
        RETURN NULL;
    END IF;
    g := ST_SetSRID(ST_Force2D(geom), srid);
    IF ST_HasArc(g) THEN
        g := ST_CurveToLine(g);
    END IF;
    IF srid <> 4326 THEN
        g := ST_Transform(g, 4326);
    END IF;
    -- PostgreSQL sorts NaN above every number.
    IF ST_XMin(g) >= -180 AND ST_XMax(g) <= 180 AND ST_YMin(g) >= -90 AND ST_YMax(g) <= 90 THEN
        RETURN g;
    END IF;
    RETURN NULL;
EXCEPTION WHEN internal_error OR data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;

-- What a box on the map is looked up in, for the rows people look at.
CREATE INDEX failed_geotasks_quarantined_geom ON failed_geotasks
    USING gist ((geodlq_lonlat(geom, epsg)::geometry(Geometry, 4326)))
    WHERE status = 'quarantined' AND geom IS NOT NULL;

-- The two views share out failed_geotasks: every row is in exactly one of them.
CREATE VIEW failed_geotasks_map AS
    SELECT id, dlq_id, coalesce(feature_id, task_id) AS feature_id, batch_id, status, error_type AS reason, failed_rule AS rule,
           error, fingerprint, attempts, redrives, source_crs, epsg, contract_version, first_seen, last_seen,
           geodlq_lonlat(geom, epsg)::geometry(Geometry, 4326) AS geom
    FROM failed_geotasks
    WHERE geom IS NOT NULL AND geodlq_lonlat(geom, epsg)::geometry(Geometry, 4326) IS NOT NULL;

CREATE VIEW failed_geotasks_unmappable AS
    SELECT id, dlq_id, coalesce(feature_id, task_id) AS feature_id, batch_id, status, error_type AS reason, failed_rule AS rule,
           error, fingerprint, attempts, redrives, source_crs, epsg, contract_version, first_seen, last_seen,
           CASE WHEN geom IS NULL THEN 'no geometry could be read'
                WHEN ST_IsEmpty(geom) THEN 'the geometry is empty'
                WHEN ST_SRID(geom) = 0 AND coalesce(epsg, 0) = 0 THEN 'the CRS is not known'
                WHEN ST_SRID(geom) <> 0 AND epsg <> 0 AND epsg <> ST_SRID(geom) THEN 'epsg and the SRID of geom disagree'
                ELSE 'the position has no place in longitude and latitude' END AS why
    FROM failed_geotasks
    WHERE geom IS NULL OR geodlq_lonlat(geom, epsg)::geometry(Geometry, 4326) IS NULL;

-- What is in quarantine, on the map, behind an index: the layer for map servers.
CREATE VIEW failed_geotasks_quarantined_map AS
    SELECT * FROM failed_geotasks_map WHERE status = 'quarantined';

-- geodlq_merge_overrides lays a person's fix over the fixes before it, attribute by
-- attribute, or puts it in their place. Without a fix it is what was there.
CREATE FUNCTION geodlq_merge_overrides(overrides jsonb, fix jsonb, replace boolean) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN fix IS NULL THEN overrides
    WHEN replace OR overrides IS NULL THEN nullif(fix, '{}')
    ELSE overrides || fix
        || CASE WHEN overrides ? 'set' AND fix ? 'set' THEN jsonb_build_object('set', (overrides -> 'set') || (fix -> 'set')) ELSE '{}' END
        || CASE WHEN overrides ? 'rename' AND fix ? 'rename' THEN jsonb_build_object('rename', (overrides -> 'rename') || (fix -> 'rename')) ELSE '{}' END
END;

-- redrive_runs: one bulk act of a person. Its rows are fixed when it begins.
CREATE TABLE redrive_runs (
    id              uuid PRIMARY KEY,
    action          text NOT NULL CHECK (action IN ('requeue', 'fix', 'discard', 'restore')),
    dry_run         boolean NOT NULL,
    state           text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'paused', 'stopped', 'cancelled', 'done')),
    request         jsonb NOT NULL,          -- as it was asked for, filter included
    actor           text NOT NULL,
    statuses        text[] NOT NULL,         -- a row that is in none of these any more is passed over
    members         bigint NOT NULL,         -- rows, or archive files of a restore
    handled         bigint NOT NULL DEFAULT 0,
    changed         bigint NOT NULL DEFAULT 0, -- of these; of a dry run, that would clear or change
    counts          jsonb NOT NULL DEFAULT '{}', -- what became of them, by outcome and reason
    rate            double precision,        -- rows a second; null: as fast as it goes
    next_chunk_at   timestamptz NOT NULL DEFAULT now(),
    canary          bigint NOT NULL DEFAULT 0, -- rows to try for real before the others
    canary_share    double precision NOT NULL DEFAULT 1,
    canary_passed   boolean,                 -- null: not known yet
    contract_version text,
    stopped_because text,
    started_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    ended_at        timestamptz
);
CREATE INDEX redrive_runs_open ON redrive_runs (started_at) WHERE state = 'running';

-- redrive_chunks: the members of a run, some thousands in each, in the order they are
-- worked on. A chunk is the unit of progress: its effect and done_at commit together.
-- Those of runs that ended a month ago are removed.
CREATE TABLE redrive_chunks (
    run     uuid NOT NULL REFERENCES redrive_runs,
    chunk   bigint NOT NULL,
    canary  boolean NOT NULL DEFAULT false,
    tasks   bigint[],  -- failed_geotasks.id
    objects text[],    -- keys in the archive, of a restore
    tries   integer NOT NULL DEFAULT 0, -- of a dry run: how often it was begun and not ended
    done_at timestamptz,
    PRIMARY KEY (run, chunk)
);
CREATE INDEX redrive_chunks_open ON redrive_chunks (run, chunk) WHERE done_at IS NULL;

-- redrive_outcomes: what the outcome log says of each dead letter, while a restore needs it.
CREATE TABLE redrive_outcomes (
    run              uuid NOT NULL REFERENCES redrive_runs,
    dlq_id           uuid NOT NULL,
    at               timestamptz NOT NULL, -- of the latest outcome, like the next three
    status           text NOT NULL,
    attempts         integer NOT NULL,
    contract_version text,
    forgiven         integer NOT NULL,
    redrives         integer NOT NULL,
    failed_at        timestamptz,          -- of the latest failure
    failed_rule      text,
    error_type       text,
    error            text,
    fixed_at         timestamptz,          -- of the latest fix
    overrides        jsonb,
    PRIMARY KEY (run, dlq_id)
);

-- redrive_audit: everything a person did, append-only.
CREATE TABLE redrive_audit (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    actor      text NOT NULL,
    request_id text,             -- of the invocation; CloudTrail knows who signed it
    action     text NOT NULL,
    request    jsonb NOT NULL,   -- filter and options as they were given
    run        uuid,
    counts     jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX redrive_audit_at ON redrive_audit USING brin (at);

INSERT INTO geodlq_privileges VALUES
    ('geodlq_redrive', 'failure_groups', 'SELECT'),
    ('geodlq_redrive', 'failure_group_changes', 'SELECT'),
    ('geodlq_redrive', 'failure_group_totals', 'SELECT'),
    ('geodlq_redrive', 'failed_geotasks_map', 'SELECT'),
    ('geodlq_redrive', 'failed_geotasks_unmappable', 'SELECT'),
    ('geodlq_redrive', 'failed_geotasks_quarantined_map', 'SELECT'),
    ('geodlq_redrive', 'redrive_runs', 'SELECT, INSERT, UPDATE'),
    ('geodlq_redrive', 'redrive_chunks', 'SELECT, INSERT, UPDATE, DELETE'),
    ('geodlq_redrive', 'redrive_outcomes', 'SELECT, INSERT, UPDATE, DELETE'),
    ('geodlq_redrive', 'redrive_audit', 'SELECT, INSERT'),
    ('geodlq_reader', 'failure_group_totals', 'SELECT'),
    ('geodlq_reader', 'failed_geotasks_map', 'SELECT'),
    ('geodlq_reader', 'failed_geotasks_unmappable', 'SELECT'),
    ('geodlq_reader', 'failed_geotasks_quarantined_map', 'SELECT'),
    ('geodlq_reader', 'redrive_runs', 'SELECT'),
    ('geodlq_reader', 'redrive_audit', 'SELECT'),
    ('geodlq_metrics', 'failure_group_totals', 'SELECT');

DO $$
DECLARE
    stmt text;
BEGIN
    FOR stmt IN SELECT geodlq_grant() LOOP
        RAISE WARNING 'not allowed to run: %; have an administrator run it, then SELECT geodlq_grant()', stmt;
    END LOOP;
END $$;
