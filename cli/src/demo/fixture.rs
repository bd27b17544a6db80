//! Reads the recorded conversations that the demo plays: the built-in ones, a file, or a folder of files.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use abide_schema::{Code, Refusal};
use ruzstd::decoding::StreamingDecoder;

use super::recording::Recording;
use crate::failure::Failure;

/// 24 conversations; `tests/fixtures/README.md` has their origin and licences.
const BUILT_IN: &[u8] = include_bytes!("../../../tests/fixtures/conversations.jsonl.zst");

/// Reads the conversations of a file or a folder, or the built-in ones if `path` is `None`: the first `max` in the
/// order of files and lines, or all. What follows them is not read.
///
/// # Errors
/// A file cannot be read, a line of it is not a recorded conversation, or there is no conversation.
pub(crate) fn read_recordings(
    path: Option<&Path>,
    max: Option<usize>,
) -> Result<Vec<Recording>, Failure> {
    let max = max.unwrap_or(usize::MAX);
    let mut recordings = Vec::new();
    match path {
        None => read_lines("the built-in data", unpack(BUILT_IN)?, max, &mut recordings)?,
        Some(path) => {
            for file in list_files(path)? {
                if recordings.len() >= max {
                    break;
                }
                read_file(&file, max, &mut recordings)?;
            }
        }
    }
    if recordings.is_empty() {
        let place = path.map_or("the built-in data".to_owned(), |path| path.display().to_string());
        let detail = format!("{place} has no recorded conversation");
        return Err(Failure::usage(
            detail,
            "name a .jsonl or .jsonl.zst file of recorded conversations",
        ));
    }
    Ok(recordings)
}

/// Returns the file, or the `.jsonl` and `.jsonl.zst` files of a folder in the order of their names.
fn list_files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(|why| unreadable_failure(path, &why))? {
        let file = entry.map_err(|why| unreadable_failure(path, &why))?.path();
        let name = file.to_string_lossy().into_owned();
        if name.ends_with(".jsonl") || name.ends_with(".jsonl.zst") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn read_file(path: &Path, max: usize, into: &mut Vec<Recording>) -> Result<(), Failure> {
    let name = path.display().to_string();
    let file = BufReader::new(File::open(path).map_err(|why| unreadable_failure(path, &why))?);
    if name.ends_with(".zst") {
        read_lines(&name, unpack(file)?, max, into)
    } else {
        read_lines(&name, file, max, into)
    }
}

fn unpack<R: Read>(packed: R) -> Result<impl BufRead, Failure> {
    let unpacked = StreamingDecoder::new(packed).map_err(|why| {
        Failure::usage(format!("the data is not valid zstd: {why}"), "unpack it with zstd -d")
    })?;
    Ok(BufReader::new(unpacked))
}

fn read_lines(
    name: &str,
    lines: impl BufRead,
    max: usize,
    into: &mut Vec<Recording>,
) -> Result<(), Failure> {
    for (at, line) in lines.lines().enumerate() {
        if into.len() >= max {
            return Ok(());
        }
        let line = line.map_err(|why| unreadable_failure(Path::new(name), &why))?;
        if line.trim().is_empty() {
            continue;
        }
        into.push(Recording::parse(&line).map_err(|why| {
            let detail = format!("line {} of {name} is not a recorded conversation: {why}", at + 1);
            let form = "one object a line: {\"id\": …, \"messages\": [{\"role\", \"content\"}, …]}";
            Refusal::new(Code::BadRequest, detail).hint(form)
        })?);
    }
    Ok(())
}

fn unreadable_failure(path: &Path, why: &std::io::Error) -> Failure {
    let detail = format!("{} cannot be read: {why}", path.display());
    Refusal::new(Code::BadRequest, detail).hint("check the path").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    /// Checks the names of the conversations, or the error.
    fn check(text: &str, max: usize, expected: Expect) {
        let mut recordings = Vec::new();
        let output = match read_lines("talk.jsonl", text.as_bytes(), max, &mut recordings) {
            Ok(()) => {
                let names = recordings.iter().map(|recording| recording.name.as_str());
                names.collect::<Vec<_>>().join(" ")
            }
            Err(Failure::Refused(refusal)) => refusal.detail.replace(": ", ":\n"),
            Err(other) => format!("{other:?}"),
        };
        expected.assert_eq(&output);
    }

    #[test]
    fn the_built_in_data_is_what_its_readme_says() {
        let recordings = read_recordings(None, None).expect("the built-in data is sound");
        let messages: usize = recordings.iter().map(|recording| recording.messages.len()).sum();
        let calls: Vec<_> = recordings.iter().flat_map(|recording| &recording.calls).collect();
        let null_ids = calls.iter().filter(|call| call.provider_id.is_none()).count();
        let text = calls.iter().filter(|call| call.arguments.is_string()).count();
        let answered = recordings.iter().flat_map(|recording| &recording.messages);
        let results = answered.clone().filter(|message| message.role == "tool").count();
        let answers = answered.filter(|message| message.answers.is_some()).count();
        let handoffs = calls.iter().filter(|call| call.is_handoff()).count();
        assert_eq!((recordings.len(), messages, calls.len(), handoffs), (24, 731, 188, 3));
        assert_eq!((null_ids, text), (14, 13));
        assert_eq!((results, answers), (185, 185));
    }

    #[test]
    fn a_subset_of_the_recordings_can_be_played() {
        assert_eq!(read_recordings(None, Some(3)).expect("the built-in data is sound").len(), 3);
    }

    /// A damaged file after the first conversations was opened, and refused, although none of its lines is played.
    #[test]
    fn files_after_the_last_conversation_are_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("a file can be written");
        };
        write("a.jsonl", "{\"id\":\"a\",\"messages\":[]}\n");
        write("b.jsonl.zst", "not compressed");
        let first = read_recordings(Some(folder.path()), Some(1)).expect("the first file is sound");
        assert_eq!(first.len(), 1);
        assert!(read_recordings(Some(folder.path()), Some(2)).is_err());
    }

    #[test]
    fn blank_lines_are_skipped_and_bad_lines_are_named() {
        let good = r#"{"id":"a","messages":[]}"#;
        check(&format!("{good}\n\n{good}\n"), 9, expect!["a a"]);
        check(
            &format!("{good}\n{{\"id\""),
            9,
            expect![[r#"
            line 2 of talk.jsonl is not a recorded conversation:
            it is not JSON:
            EOF while parsing an object at line 1 column 5"#]],
        );
        check(
            &format!("{good}\n[1]"),
            9,
            expect![[r#"
            line 2 of talk.jsonl is not a recorded conversation:
            it is not a JSON object"#]],
        );
        check(&format!("{good}\n[1]"), 1, expect!["a"]);
        check(
            r#"{"id":"a"}"#,
            9,
            expect![[r#"
            line 1 of talk.jsonl is not a recorded conversation:
            it has no list of messages"#]],
        );
        check(
            r#"{"messages":[]}"#,
            9,
            expect![[r#"
            line 1 of talk.jsonl is not a recorded conversation:
            it has no id"#]],
        );
        let message = |message: &str| format!(r#"{{"id":"a","messages":[{message}]}}"#);
        check(
            &message(r#"{"content":"x"}"#),
            9,
            expect![[r#"
            line 1 of talk.jsonl is not a recorded conversation:
            message 0 has no role"#]],
        );
        check(
            &message(r#"{"role":"x","tool_calls":[{}]}"#),
            9,
            expect![[r#"
            line 1 of talk.jsonl is not a recorded conversation:
            message 0 has a tool call 0 without a name"#]],
        );
        check(
            &message(r#"{"role":"x","tool_calls":{}}"#),
            9,
            expect![[r#"
            line 1 of talk.jsonl is not a recorded conversation:
            message 0 has tool_calls that are not a list"#]],
        );
        check(
            &message("7"),
            9,
            expect![[r#"
            line 1 of talk.jsonl is not a recorded conversation:
            message 0 is not a JSON object"#]],
        );
    }

    #[test]
    fn data_that_is_not_compressed_is_not_read_as_zst() {
        assert!(unpack(&b"{}"[..]).is_err());
    }
}
