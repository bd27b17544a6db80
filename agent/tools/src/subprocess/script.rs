//! No placeholder within a script: a program that is given code to run would run what a model writes there.
//!
//! A script that is nothing but a placeholder is meant to be the model's.

use crate::template::Template;

/// What runs code, and the options that the code follows. Of a shell's, `c` may stand with others: `-ec`.
const INTERPRETERS: &[(&[&str], &[&str])] = &[
    (&["python", "python2", "python3", "pypy", "pypy3"], &["-c"]),
    (&["node", "bun", "deno"], &["-e", "-p", "-pe", "--eval", "--print", "eval"]),
    (&["perl", "ruby"], &["-e", "-E", "-ne", "-pe"]),
    (&["php"], &["-r"]),
];

const SHELLS: &[&str] = &["sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox"];

/// Sees to it that there is none in a command.
pub(super) fn check(argv: &[Template], written: &[String]) -> Result<(), String> {
    // The interpreter need not be the first word: `timeout 5 sh -c …`.
    let mut interpreter = None;
    for (at, word) in written.iter().enumerate() {
        let is_script = interpreter.is_some_and(|name| takes_code(name, word));
        let next = argv.get(at + 1);
        let mixed = |script: &Template| script.only_place().is_none() && script.names().count() > 0;
        if let (true, Some(script), Some(name)) =
            (is_script, next.filter(|it| mixed(it)), interpreter)
        {
            let place = script.names().next().unwrap_or_default();
            return Err(format!(
                "{{{place}}} within a script of {name} would be code: give it as an argument of its own, which the \
                 script reads (in sh: \"$1\", after the script  sh \"{{{place}}}\")"
            ));
        }
        let name = word.rsplit('/').next().unwrap_or_default();
        if SHELLS.contains(&name) || INTERPRETERS.iter().any(|(names, _)| names.contains(&name)) {
            interpreter = Some(name);
        }
    }
    Ok(())
}

/// Whether code follows an option.
fn takes_code(interpreter: &str, option: &str) -> bool {
    let of_shell = |option: &str| {
        option.starts_with('-') && !option.starts_with("--") && option.ends_with('c')
    };
    if SHELLS.contains(&interpreter) {
        return of_shell(option);
    }
    INTERPRETERS
        .iter()
        .any(|(names, options)| names.contains(&interpreter) && options.contains(&option))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &[&str]) -> Result<(), String> {
        let argv = command.iter().map(|word| Template::parse(word).expect("it is one"));
        let written: Vec<String> = command.iter().map(ToString::to_string).collect();
        check(&argv.collect::<Vec<_>>(), &written)
    }

    /// The README's first example of a tool had `sh -c "… {order} …"`, so that an order of `; rm -r .` was run.
    #[test]
    fn what_a_model_writes_is_no_code() {
        for command in [
            &["sh", "-c", "echo {order} >> ledger"][..],
            &["/bin/bash", "-ec", "echo '{order}'"],
            &["timeout", "5", "sh", "-c", "echo {order}"],
            &["env", "A=1", "python3", "-c", "print({order})"],
            &["node", "--eval", "f('{order}')"],
        ] {
            let why = of(command).expect_err("it would be run");
            assert!(why.starts_with("{order} within a script of "), "{why}");
        }
        for command in [
            &["sh", "-c", "echo \"$1\" >> ledger", "sh", "{order}"][..],
            &["bash", "-c", "{order}"],
            &["grep", "-c", "x{order}"],
            &["sh", "pay.sh", "--sync", "a {order}"],
        ] {
            of(command).unwrap_or_else(|why| panic!("{command:?}: {why}"));
        }
    }
}
