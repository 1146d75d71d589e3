-- The database roles of the functions, of pipelines and of people, and what each
-- may do.
--
-- Roles belong to the whole cluster and outlive a schema, so they are made where
-- they are missing and never dropped. What they may do is data, one line a role and
-- object, so that it can be read in one place and applied again at any time: after
-- a later migration added lines, or after an administrator made the roles that the
-- migrating user was not allowed to make.

SELECT set_config('search_path', current_setting('search_path') || ', pg_temp', true);

CREATE TABLE geodlq_roles (
    role    text PRIMARY KEY,
    login   boolean NOT NULL, -- signs in by itself; otherwise it is granted to those who do
    purpose text NOT NULL
);

INSERT INTO geodlq_roles VALUES
    ('geodlq_capture',  true,  'function capture: puts dead letters in'),
    ('geodlq_replay',   true,  'function replay: claims, settles, writes the target'),
    ('geodlq_metrics',  true,  'function metrics: reads, and folds the ledger'),
    ('geodlq_redrive',  true,  'function redrive: everything a person may do to the queue'),
    ('geodlq_pipeline', false, 'pipelines that insert their failures by SQL'),
    ('geodlq_reader',   false, 'people, QGIS and map servers: reads');

CREATE TABLE geodlq_privileges (
    role       text NOT NULL REFERENCES geodlq_roles,
    object     text NOT NULL, -- a table or view of this schema
    privileges text NOT NULL, -- as GRANT takes them
    PRIMARY KEY (role, object)
);

-- Nobody may DELETE or TRUNCATE dead letters, and no function may change what
-- arrived: payload, batch and first_seen are in no UPDATE list.
INSERT INTO geodlq_privileges VALUES
    -- The key of ON CONFLICT must be readable; nothing else is.
    ('geodlq_capture', 'failed_geotasks', 'INSERT, SELECT (dlq_id)'),

    ('geodlq_replay', 'failed_geotasks',
     'SELECT, UPDATE (next_attempt_at, last_seen, lease_token, attempts, lost_leases, status, geom_hash,
                      failed_rule, error_type, error, contract_version)'),
    ('geodlq_replay', 'failed_geotasks_history', 'INSERT'),
    ('geodlq_replay', 'processed_features', 'SELECT, INSERT, UPDATE'),
    ('geodlq_replay', 'replay_runs', 'SELECT, INSERT'),

    -- All but the features themselves: no payload, no geometry, no attribute.
    ('geodlq_metrics', 'failed_geotasks',
     'SELECT (id, dlq_id, next_attempt_at, first_seen, last_seen, lease_token, epsg, attempts, attempts_forgiven,
              lost_leases, redrives, upstream_attempts, status, batch_id, failed_rule, error_type, source_crs,
              contract_version, source_object, source_record)'),
    ('geodlq_metrics', 'failed_geotasks_history', 'SELECT'),
    ('geodlq_metrics', 'replay_runs', 'SELECT'),
    ('geodlq_metrics', 'dlq_ledger', 'SELECT, DELETE'),

    -- A canary replays for real and a restore inserts, so this is replay and more.
    ('geodlq_redrive', 'failed_geotasks',
     'SELECT, INSERT, UPDATE (next_attempt_at, last_seen, lease_token, attempts, attempts_forgiven, lost_leases, status,
                              geom_hash, failed_rule, error_type, error, contract_version, redrives, overrides)'),
    ('geodlq_redrive', 'failed_geotasks_history', 'SELECT, INSERT'),
    ('geodlq_redrive', 'processed_features', 'SELECT, INSERT, UPDATE'),
    ('geodlq_redrive', 'replay_runs', 'SELECT, INSERT'),
    ('geodlq_redrive', 'dlq_ledger', 'SELECT'),

    ('geodlq_pipeline', 'failed_geotasks',
     'INSERT (dlq_id, task_id, feature_id, batch_id, geom, epsg, geom_hash, feature_geojson, payload_raw, source_crs,
              failed_rule, error_type, error, upstream_attempts, first_seen)'),

    ('geodlq_reader', 'failed_geotasks', 'SELECT'),
    ('geodlq_reader', 'failed_geotasks_history', 'SELECT'),
    ('geodlq_reader', 'processed_features', 'SELECT'),
    ('geodlq_reader', 'replay_runs', 'SELECT'),
    ('geodlq_reader', 'dlq_ledger', 'SELECT');

-- geodlq_grant makes the roles that are missing and gives every role what
-- geodlq_privileges says. It may be called again and again and, since roles are the
-- cluster's, by migrations of several schemas and databases at once. It returns the
-- statements that the caller was not allowed to run, for somebody who is.
CREATE FUNCTION geodlq_grant() RETURNS SETOF text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    iam  boolean := EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'rds_iam');
    r    geodlq_roles;
    p    geodlq_privileges;
    stmt text;
BEGIN
    -- Two callers that grant on the same table would collide in the catalogue.
    PERFORM pg_advisory_xact_lock(hashtext('geodlq_grant'));
    FOR r IN SELECT * FROM geodlq_roles ORDER BY role LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = r.role) THEN
            stmt := format('CREATE ROLE %I %s', r.role, CASE WHEN r.login THEN 'LOGIN' ELSE 'NOLOGIN' END);
            BEGIN
                EXECUTE stmt;
                -- With the role and not with the session, so that it holds behind a
                -- pooler too: a sandbox that was killed or frozen in a transaction
                -- must not keep its row locks.
                EXECUTE format('ALTER ROLE %I SET idle_in_transaction_session_timeout = %L', r.role, '60s');
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN
                    NULL; -- somebody else made it since the look above
                WHEN insufficient_privilege THEN
                    RETURN NEXT stmt;
                    IF iam AND r.login THEN
                        RETURN NEXT format('GRANT rds_iam TO %I', r.role);
                    END IF;
                    CONTINUE;
            END;
        END IF;
        -- On Amazon RDS this membership is what lets a role sign in with a token.
        IF iam AND r.login AND NOT pg_has_role(r.role, 'rds_iam', 'MEMBER') THEN
            stmt := format('GRANT rds_iam TO %I', r.role);
            BEGIN
                EXECUTE stmt;
            EXCEPTION
                WHEN unique_violation THEN NULL;
                WHEN insufficient_privilege THEN RETURN NEXT stmt;
            END;
        END IF;
        IF NOT has_schema_privilege(r.role, current_schema(), 'USAGE') THEN
            stmt := format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), r.role);
            BEGIN
                EXECUTE stmt;
            EXCEPTION WHEN insufficient_privilege THEN
                RETURN NEXT stmt;
            END;
        END IF;
        IF NOT has_database_privilege(r.role, current_database(), 'CONNECT') THEN
            RETURN NEXT format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), r.role);
        END IF;
        FOR p IN SELECT * FROM geodlq_privileges WHERE role = r.role ORDER BY object LOOP
            EXECUTE format('GRANT %s ON %I.%I TO %I', p.privileges, current_schema(), p.object, p.role);
        END LOOP;
    END LOOP;
END $$;

-- What stands in the table is executed with the caller's rights.
REVOKE ALL ON FUNCTION geodlq_grant() FROM PUBLIC;

DO $$
DECLARE
    stmt text;
BEGIN
    FOR stmt IN SELECT geodlq_grant() LOOP
        RAISE WARNING 'not allowed to run: %; have an administrator run it, then SELECT geodlq_grant()', stmt;
    END LOOP;
END $$;
