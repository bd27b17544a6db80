//! Programs that run code or other programs, and their options. A missing option can only cause a command with
//! placeholders to be refused, never to be accepted.

/// The options before an operand.
pub(super) struct Options {
    /// Short options without a value.
    pub(super) flags: &'static str,
    /// Short options with a value: attached, or in the next word.
    pub(super) valued: &'static str,
    /// Short options with an optional, attached value.
    pub(super) optional: &'static str,
    /// Short options with code, or with a file of code.
    pub(super) code: &'static str,
    /// Whether the text attached to these is further options, and the code is the next word: `node -pe CODE`.
    pub(super) code_is_next_word: bool,
    /// Short options that make the program read its code from stdin.
    pub(super) stdin: &'static str,
    pub(super) long_flags: &'static [&'static str],
    pub(super) long_valued: &'static [&'static str],
    pub(super) long_code: &'static [&'static str],
    /// Whether `NAME=value` may precede the operand, as in `env`.
    pub(super) assignments: bool,
}

const NONE: Options = Options {
    flags: "",
    valued: "",
    optional: "",
    code: "",
    code_is_next_word: false,
    stdin: "",
    long_flags: &[],
    long_valued: &[],
    long_code: &[],
    assignments: false,
};

/// A program whose first operand is a script, unless an option has one.
pub(super) struct Interpreter {
    pub(super) names: &'static [&'static str],
    pub(super) options: Options,
    /// Whether options are also recognized after the script.
    pub(super) permutes: bool,
}

pub(super) const INTERPRETERS: &[Interpreter] = &[
    // Even with `-c`, the first operand is the script.
    Interpreter {
        names: &["ash", "bash", "dash", "ksh", "mksh", "rbash", "sh", "yash", "zsh"],
        options: Options {
            flags: "abcefhiklmnprtuvxBCEHPT",
            valued: "oO",
            stdin: "s",
            long_flags: &[
                "login",
                "noediting",
                "noprofile",
                "norc",
                "posix",
                "restricted",
                "verbose",
            ],
            long_valued: &["init-file", "rcfile"],
            ..NONE
        },
        permutes: false,
    },
    Interpreter {
        names: &["ipython", "pypy", "python"],
        options: Options { flags: "bBdEhiIOPqsSuvVx", valued: "WX", code: "c", ..NONE },
        permutes: false,
    },
    Interpreter {
        names: &["node", "nodejs"],
        options: Options {
            flags: "i",
            valued: "Cr",
            code: "ep",
            code_is_next_word: true,
            long_flags: &["no-warnings"],
            long_valued: &["import", "max-old-space-size", "require"],
            long_code: &["eval", "print"],
            ..NONE
        },
        permutes: false,
    },
    // Not -n, -p and -i: they open their arguments as files, and `id |` runs a command there.
    Interpreter {
        names: &["perl"],
        options: Options { flags: "0123456789clStTuUvwWX", valued: "IMm", code: "eE", ..NONE },
        permutes: false,
    },
    Interpreter {
        names: &["jruby", "ruby"],
        options: Options { flags: "lUvw", valued: "EIr", code: "e", ..NONE },
        permutes: false,
    },
    Interpreter {
        names: &["php"],
        options: Options { flags: "Cnq", valued: "cdz", code: "fr", ..NONE },
        permutes: false,
    },
    // A script follows even with `-e`.
    Interpreter {
        names: &["lua", "luajit"],
        options: Options { flags: "Ev", valued: "el", ..NONE },
        permutes: false,
    },
    Interpreter { names: &["tclsh"], options: NONE, permutes: false },
    Interpreter {
        names: &["awk", "gawk", "mawk", "nawk", "original-awk"],
        options: Options { valued: "Fv", code: "f", ..NONE },
        permutes: true,
    },
    Interpreter {
        names: &["gsed", "sed"],
        options: Options {
            flags: "Enrsuz",
            valued: "l",
            optional: "i",
            code: "ef",
            long_flags: &["null-data", "posix", "quiet", "regexp-extended", "separate", "silent"],
            long_code: &["expression", "file"],
            ..NONE
        },
        permutes: true,
    },
];

/// A program that starts the program after its own options and operands.
pub(super) struct Wrapper {
    pub(super) names: &'static [&'static str],
    pub(super) options: Options,
    pub(super) operands: usize,
}

pub(super) const WRAPPERS: &[Wrapper] = &[
    Wrapper { names: &["busybox", "nohup"], options: NONE, operands: 0 },
    Wrapper {
        names: &["env"],
        options: Options {
            flags: "0iv",
            valued: "Cu",
            long_flags: &["debug", "ignore-environment", "null"],
            long_valued: &["chdir", "unset"],
            assignments: true,
            ..NONE
        },
        operands: 0,
    },
    Wrapper {
        names: &["nice"],
        options: Options { flags: "0123456789", valued: "n", long_valued: &["adjustment"], ..NONE },
        operands: 0,
    },
    Wrapper {
        names: &["ionice"],
        options: Options { flags: "t", valued: "cn", ..NONE },
        operands: 0,
    },
    Wrapper {
        names: &["setsid"],
        options: Options { flags: "cfw", long_flags: &["ctty", "fork", "wait"], ..NONE },
        operands: 0,
    },
    Wrapper {
        names: &["stdbuf"],
        options: Options { valued: "eio", long_valued: &["error", "input", "output"], ..NONE },
        operands: 0,
    },
    Wrapper {
        names: &["time"],
        options: Options { flags: "apqv", valued: "fo", ..NONE },
        operands: 0,
    },
    Wrapper {
        names: &["timeout"],
        options: Options {
            flags: "v",
            valued: "ks",
            long_flags: &["foreground", "preserve-status", "verbose"],
            long_valued: &["kill-after", "signal"],
            ..NONE
        },
        operands: 1,
    },
    Wrapper {
        names: &["doas"],
        options: Options { flags: "n", valued: "Cu", ..NONE },
        operands: 0,
    },
    Wrapper {
        names: &["sudo"],
        options: Options {
            flags: "AbEHknS",
            valued: "Cghpu",
            long_flags: &["non-interactive", "preserve-env", "set-home"],
            long_valued: &["group", "user"],
            assignments: true,
            ..NONE
        },
        operands: 0,
    },
];

/// Programs that execute their arguments, or join them into a shell command, in too many ways to distinguish.
pub(super) const NO_PLACEHOLDERS: &[&str] = &[
    "at",
    "batch",
    "bc",
    "bun",
    "cmd",
    "csh",
    "dc",
    "deno",
    "ed",
    "elixir",
    "elvish",
    "emacs",
    "erl",
    "eval",
    "ex",
    "expect",
    "fish",
    "gdb",
    "ghci",
    "gmake",
    "groovy",
    "iex",
    "irb",
    "jshell",
    "julia",
    "lldb",
    "m4",
    "make",
    "mariadb",
    "mosh",
    "mysql",
    "nsenter",
    "nu",
    "nvim",
    "osascript",
    "parallel",
    "powershell",
    "psql",
    "pwsh",
    "r",
    "remsh",
    "rsh",
    "rscript",
    "runuser",
    "scala",
    "screen",
    "script",
    "slogin",
    "sqlite3",
    "ssh",
    "su",
    "tcsh",
    "tmux",
    "vi",
    "vim",
    "watch",
    "wish",
    "wsl",
    "xargs",
    "xonsh",
];

/// Returns the name of a program without its folder, and without suffixes of builds and versions: `python3.11`,
/// `bash-static`.
pub(super) fn name(program: &str) -> &'static str {
    let file = program.rsplit(['/', '\\']).next().unwrap_or_default().to_ascii_lowercase();
    let mut name = file.as_str();
    loop {
        let known = all_names().find(|known| *known == name);
        if let Some(known) = known {
            return known;
        }
        let shorter = ["-static", ".static", ".distrib", "-dbg", ".exe"]
            .iter()
            .find_map(|ending| name.strip_suffix(ending))
            .unwrap_or_else(|| {
                name.trim_end_matches(|c: char| c.is_ascii_digit() || ".-_".contains(c))
            });
        if shorter == name {
            return "";
        }
        name = shorter;
    }
}

fn all_names() -> impl Iterator<Item = &'static str> {
    let interpreters = INTERPRETERS.iter().flat_map(|it| it.names);
    let wrappers = WRAPPERS.iter().flat_map(|it| it.names);
    let others = ["find", "git", "rsync", "tar"];
    interpreters.chain(wrappers).chain(NO_PLACEHOLDERS).copied().chain(others)
}
