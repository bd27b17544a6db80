//! Parsing of the options of `abide serve`.

use clap::Parser;

use super::*;

#[derive(Parser, Debug)]
struct CommandLine {
    #[command(flatten)]
    serve: Serve,
}

fn buffers(options: &[&str]) -> Result<BufferLimits, String> {
    let line = ["abide"].iter().chain(options);
    let line = CommandLine::try_parse_from(line).map_err(|why| why.to_string())?;
    line.serve.buffers().map_err(|refusal| refusal.detail)
}

#[test]
fn buffers_are_bounded_as_the_options_say() {
    const MB: usize = 1 << 20;
    let limits =
        |total, per_caller| Ok(BufferLimits { total: total * MB, per_caller: per_caller * MB });
    assert_eq!(buffers(&[]), Ok(BufferLimits::default()));
    assert_eq!(buffers(&[]), limits(256, 96), "the texts of --help");
    assert_eq!(buffers(&["--buffer-limit", "1GB"]), limits(1_024, 96));
    assert_eq!(buffers(&["--buffer-limit", "32MB"]), limits(32, 12));
    assert_eq!(buffers(&["--buffer-limit-per-caller", "8MB"]), limits(256, 8));
    for wrong in ["0MB", "1023kB", "12", "many"] {
        assert!(buffers(&["--buffer-limit", wrong]).is_err(), "{wrong}");
        assert!(buffers(&["--buffer-limit-per-caller", wrong]).is_err(), "{wrong}");
    }
    let swapped = buffers(&["--buffer-limit", "8MB", "--buffer-limit-per-caller", "9MB"]);
    assert_eq!(swapped, Err("--buffer-limit-per-caller is more than --buffer-limit".to_owned()));
}
