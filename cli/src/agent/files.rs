//! `abide agent files`: the files that the calls of a session have touched, also those of agents to which it delegated.

use abide_schema::{Code, Refusal};
use clap::Args;
use serde_json::json;

use crate::connect::{Access, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{note, print_json, print_line};
use crate::printable::one_line;

/// Arguments of `abide agent files`.
#[derive(Args, Debug)]
pub(super) struct Files {
    /// The session
    session: String,
}

/// How many files are listed: as many rows as a query returns at most, less one to notice that there are more.
const LISTED: usize = 9_999;

/// A file: the call, its tool, the action, the path, the digest, and whether the call has listed all of its files.
type Row = (String, String, String, String, Option<String>, i64);

/// The files in the results of calls, then those of calls that were interrupted, then those that a tool has refused. A
/// delegated session has an id that begins with that of its parent.
const SQL: &str = "\
    WITH own AS (SELECT * FROM tool_calls \
      WHERE session_id = :id OR (session_id > :id || '~' AND session_id < :id || char(127))), \
    listed AS ( \
      SELECT call_id, tool_name, file.value ->> '$.action' AS action, file.value ->> '$.path' AS path, \
        file.value ->> '$.sha256' AS sha256, \
        coalesce(own.result ->> '$.content.files_complete', 1) AS is_complete, created_seq AS at \
      FROM own, json_each(own.result, '$.content.files') AS file \
      UNION ALL \
      SELECT own.call_id, own.tool_name, file.value ->> '$.action', file.value ->> '$.path', \
        file.value ->> '$.sha256', coalesce(request.value ->> '$.files_complete', 1), own.created_seq \
      FROM run_events, json_each(run_events.data, '$.action_requests') AS request, \
        json_each(request.value, '$.files') AS file, own \
      WHERE run_events.kind = 'interrupt' AND own.call_id = request.value ->> '$.tool_call_id' \
      UNION ALL \
      SELECT call_id, tool_name, 'refused', own.arguments ->> '$.path', NULL, 1, created_seq FROM own \
      WHERE status IN ('failed', 'rejected') AND own.arguments ->> '$.path' IS NOT NULL \
        AND tool_name IN ('ls', 'read_file', 'glob', 'grep', 'write_file', 'edit_file')) \
    SELECT DISTINCT call_id, tool_name, action, path, sha256, is_complete FROM listed \
    ORDER BY at, call_id, path LIMIT 10000";

/// Lists the files.
///
/// # Errors
/// There is no such session, or the file or the server cannot be used.
pub(super) async fn files(options: &Options, args: Files) -> Result<(), Failure> {
    let abide = connect(options, Access::Read).await?;
    let found = abide.find_session(&args.session).await?;
    let session = found
        .ok_or_else(|| {
            let detail = format!("there is no session {}", args.session);
            Refusal::new(Code::NotFound, detail)
                .hint("`abide sql \"SELECT id FROM sessions\"` lists them")
        })?
        .id()
        .to_owned();
    let mut rows: Vec<Row> = abide.sql(SQL).param("id", &session).fetch().await?;
    abide.close().await;
    let is_cut = rows.len() > LISTED;
    rows.truncate(LISTED);
    for (call_id, tool, action, path, sha256, _) in &rows {
        if options.json {
            print_json(&json!({"call_id": call_id, "tool": tool, "action": action, "path": path,
                "sha256": sha256}))?;
        } else {
            let digest = sha256.as_deref().unwrap_or("-").chars().take(12).collect::<String>();
            print_line(one_line(&format!("{action:<8}  {path}  {tool}  {call_id}  {digest}")))?;
        }
    }
    if rows.is_empty() && !options.json {
        note("no files");
    }
    if is_cut || rows.iter().any(|(.., is_complete)| *is_complete == 0) {
        note(
            "the list is not complete: a command changed too many files, or there are too many rows",
        );
    }
    Ok(())
}
