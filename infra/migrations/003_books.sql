-- The books: what the metrics function makes of the ledger. Only it writes here,
-- under a lock on the one row of dlq_books.

SELECT set_config('search_path', current_setting('search_path') || ', pg_temp', true);

-- dlq_batches: for each batch what ever arrived and what became of it, up to the
-- latest fold. Whatever happens, arrived is the sum of active, cleared, quarantined
-- and discarded. A dead letter that somebody deletes stays arrived: one that was
-- pending or quarantined counts as discarded from then on.
CREATE TABLE dlq_batches (
    batch_id          text PRIMARY KEY,
    arrived           bigint NOT NULL DEFAULT 0,
    active            bigint NOT NULL GENERATED ALWAYS AS (arrived - cleared - quarantined - discarded) STORED, -- pending, leased included
    cleared           bigint NOT NULL DEFAULT 0, -- replayed
    quarantined       bigint NOT NULL DEFAULT 0,
    discarded         bigint NOT NULL DEFAULT 0,
    poison_rate       numeric GENERATED ALWAYS AS (CASE WHEN arrived > 0 THEN round(quarantined::numeric / arrived, 4) END) STORED,
    cleared_deleted   bigint NOT NULL DEFAULT 0, -- of cleared, rows that are no longer in failed_geotasks
    discarded_deleted bigint NOT NULL DEFAULT 0, -- of discarded, likewise
    first_activity    timestamptz NOT NULL,
    last_activity     timestamptz NOT NULL
);
CREATE INDEX dlq_batches_poison ON dlq_batches (poison_rate) WHERE quarantined > 0;
CREATE INDEX dlq_batches_recent ON dlq_batches (last_activity);

-- dlq_batch_causes: how many rows of a batch are in quarantine for which cause.
CREATE TABLE dlq_batch_causes (
    batch_id    text NOT NULL,
    error_type  text NOT NULL, -- '' where the row has none, like failed_rule
    failed_rule text NOT NULL,
    quarantined bigint NOT NULL,
    PRIMARY KEY (batch_id, error_type, failed_rule)
);

-- dlq_activity: the folded ledger, summed up by the window it counts in: the one
-- that its time names or, if that had been closed when it was folded, the one that
-- was open then. So a closed window never changes, and all windows together are
-- everything that happened. Pruned after 15 days.
CREATE TABLE dlq_activity (
    window_start timestamptz NOT NULL,
    batch_id     text NOT NULL,
    transition   text NOT NULL,     -- as in dlq_ledger
    reason       text NOT NULL,     -- why rows failed or went to quarantine, of the closed list; '' for the rest
    from_status  text NOT NULL,     -- '' for none, like to_status
    to_status    text NOT NULL,
    age_class    smallint NOT NULL, -- as in dlq_ledger, -1 for none
    n            bigint NOT NULL,
    PRIMARY KEY (window_start, batch_id, transition, reason, from_status, to_status, age_class)
);

-- dlq_windows: the closed windows with the values that are published for them.
-- They are stored before they are published, so that a repetition says the same.
CREATE TABLE dlq_windows (
    window_start               timestamptz PRIMARY KEY,
    window_end                 timestamptz NOT NULL,
    counts_from                timestamptz NOT NULL, -- window_start, or earlier where the time before could no longer be published

    -- What happened in it, in rows; downstream_stops in runs of replay.
    arrived                    bigint NOT NULL,
    cleared                    bigint NOT NULL,
    replay_failed              bigint NOT NULL,
    quarantined                bigint NOT NULL,
    discarded                  bigint NOT NULL,
    lost_leases                bigint NOT NULL,
    downstream_stops           bigint NOT NULL,
    replay_failed_by_reason    jsonb NOT NULL,
    quarantined_by_reason      jsonb NOT NULL,
    cleared_by_age             jsonb NOT NULL, -- by dlq_ledger.age_class

    -- How things stood when it was closed; in a window that was made up for later,
    -- how they had stood at its end. Null is not known or not defined.
    arrived_total              bigint NOT NULL,
    active                     bigint NOT NULL,
    quarantined_now            bigint NOT NULL,
    poison_rate                numeric,
    worst_batch                text,
    worst_batch_poison_rate    numeric,
    oldest_pending_age_seconds double precision,

    closed_at                  timestamptz NOT NULL DEFAULT now(),
    published_at               timestamptz, -- in CloudWatch
    expired_at                 timestamptz, -- given up: CloudWatch takes nothing older than two weeks
    manifested_at              timestamptz  -- lineage written
);
CREATE INDEX dlq_windows_unpublished ON dlq_windows (window_start) WHERE published_at IS NULL AND expired_at IS NULL;
CREATE INDEX dlq_windows_unmanifested ON dlq_windows (window_start) WHERE manifested_at IS NULL;

-- dlq_books: the totals of all batches and how far windows are closed, in one row,
-- which is also the lock of the books.
CREATE TABLE dlq_books (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    arrived      bigint NOT NULL DEFAULT 0,
    cleared      bigint NOT NULL DEFAULT 0,
    quarantined  bigint NOT NULL DEFAULT 0,
    discarded    bigint NOT NULL DEFAULT 0,
    closed_until timestamptz
);
INSERT INTO dlq_books DEFAULT VALUES;

-- dlq_archive_files: the archive files of capture, recorded in the transaction that
-- queues their rows.
CREATE TABLE dlq_archive_files (
    object_key    text PRIMARY KEY,
    batch_id      text NOT NULL,
    source_object text NOT NULL, -- as in failed_geotasks
    rows          bigint NOT NULL,
    bytes         bigint NOT NULL,
    sha256        text NOT NULL, -- of the file, hexadecimal
    at            timestamptz NOT NULL DEFAULT now(),
    window_start  timestamptz    -- the window it counts in, as in dlq_activity; null until the books took it in
);
CREATE INDEX dlq_archive_files_new ON dlq_archive_files (at) WHERE window_start IS NULL;
CREATE INDEX dlq_archive_files_window ON dlq_archive_files (window_start, batch_id);

-- Runs of replay count in windows in the same way.
ALTER TABLE replay_runs ADD COLUMN window_start timestamptz;
CREATE INDEX replay_runs_new ON replay_runs (ended_at) WHERE window_start IS NULL;
CREATE INDEX replay_runs_window ON replay_runs (window_start);

-- The pending row that has waited longest. Rows under a lease are left out: a claim
-- would else write here too, and failed_geotasks_held finds those few.
CREATE INDEX failed_geotasks_waiting ON failed_geotasks (first_seen)
    WHERE status = 'pending' AND lease_token IS NULL;

UPDATE geodlq_privileges SET privileges = 'SELECT, UPDATE (window_start)'
WHERE role = 'geodlq_metrics' AND object = 'replay_runs';

INSERT INTO geodlq_privileges VALUES
    ('geodlq_capture', 'dlq_archive_files',
     'INSERT (object_key, batch_id, source_object, rows, bytes, sha256), SELECT (object_key)'),

    ('geodlq_metrics', 'dlq_batches', 'SELECT, INSERT, UPDATE'),
    ('geodlq_metrics', 'dlq_batch_causes', 'SELECT, INSERT, UPDATE'),
    ('geodlq_metrics', 'dlq_activity', 'SELECT, INSERT, UPDATE, DELETE'),
    ('geodlq_metrics', 'dlq_windows', 'SELECT, INSERT, UPDATE'),
    ('geodlq_metrics', 'dlq_books', 'SELECT, UPDATE'),
    ('geodlq_metrics', 'dlq_archive_files', 'SELECT, UPDATE (window_start)'),

    ('geodlq_redrive', 'dlq_batches', 'SELECT'),
    ('geodlq_redrive', 'dlq_batch_causes', 'SELECT'),
    ('geodlq_redrive', 'dlq_windows', 'SELECT'),
    ('geodlq_redrive', 'dlq_archive_files', 'SELECT'),

    ('geodlq_reader', 'dlq_batches', 'SELECT'),
    ('geodlq_reader', 'dlq_batch_causes', 'SELECT'),
    ('geodlq_reader', 'dlq_activity', 'SELECT'),
    ('geodlq_reader', 'dlq_windows', 'SELECT'),
    ('geodlq_reader', 'dlq_archive_files', 'SELECT');

DO $$
DECLARE
    stmt text;
BEGIN
    FOR stmt IN SELECT geodlq_grant() LOOP
        RAISE WARNING 'not allowed to run: %; have an administrator run it, then SELECT geodlq_grant()', stmt;
    END LOOP;
END $$;
