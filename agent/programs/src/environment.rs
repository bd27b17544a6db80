//! The environment of a program, and the secrets in it that must not appear in errors.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::config::{CliConfig, InheritEnv};

/// Minimum length of a secret. Redacting shorter values would make texts unreadable.
const SECRET_MIN_BYTES: usize = 8;

/// The replacement for a secret.
const REDACTED: &str = "[redacted]";

/// Parts of the names of variables with secrets.
const SECRET_NAMES: [&str; 5] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"];

/// The environment of a program, and the secret values in it.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) variables: BTreeMap<OsString, OsString>,
    pub(crate) secrets: Secrets,
}

impl Environment {
    /// Configured variables override inherited ones.
    pub(crate) fn new(
        config: &CliConfig,
        host: impl Iterator<Item = (OsString, OsString)>,
    ) -> Self {
        let inherited = |name: &OsString| match config.inherit_env {
            InheritEnv::All => true,
            InheritEnv::Allowlist => config.env_allowlist.iter().any(|allowed| *name == **allowed),
        };
        let mut variables: BTreeMap<OsString, OsString> =
            host.filter(|(name, _)| inherited(name)).collect();
        variables.extend(config.env.iter().map(|(name, value)| (name.into(), value.into())));
        let secret = variables.iter().filter(|(name, _)| {
            let upper = name.to_string_lossy().to_uppercase();
            SECRET_NAMES.iter().any(|part| upper.contains(part))
        });
        let secrets = Secrets::new(secret.map(|(_, value)| value.to_string_lossy().into_owned()));
        Self { variables, secrets }
    }
}

/// Values that must not appear in output.
#[derive(Debug, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    fn new(values: impl Iterator<Item = String>) -> Self {
        let mut values: Vec<String> =
            values.filter(|value| value.len() >= SECRET_MIN_BYTES).collect();
        // Longest first, because one may be a prefix of another.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self(values)
    }

    pub(crate) fn redact(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| text.replace(secret, REDACTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: [(&str, &str); 4] =
        [("PATH", "/bin"), ("AWS_SECRET_KEY", "hunter2hunter2"), ("LANG", "C"), ("EDITOR", "ed")];

    /// The environment of a program on this host.
    fn check(config: &CliConfig, expected: &str) -> Environment {
        let host = HOST.map(|(name, value)| (name.into(), value.into()));
        let environment = Environment::new(config, host.into_iter());
        let shown = environment.variables.iter();
        let shown: Vec<String> = shown
            .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()))
            .collect();
        assert_eq!(shown.join(" "), expected);
        environment
    }

    #[test]
    fn by_default_the_allowlist_is_inherited() {
        check(&CliConfig::new(["x"]), "LANG=C PATH=/bin");
    }

    #[test]
    fn inherit_all_inherits_all_variables() {
        let config = CliConfig { inherit_env: InheritEnv::All, ..CliConfig::new(["x"]) };
        check(&config, "AWS_SECRET_KEY=hunter2hunter2 EDITOR=ed LANG=C PATH=/bin");
    }

    #[test]
    fn configured_variables_override_inherited_ones() {
        let mut config = CliConfig::new(["x"]);
        config.env.insert("LANG".to_owned(), "de".to_owned());
        config.env.insert("API_KEY".to_owned(), "k".to_owned());
        check(&config, "API_KEY=k LANG=de PATH=/bin");
    }

    #[test]
    fn secrets_are_removed_from_texts() {
        let mut config = CliConfig { inherit_env: InheritEnv::All, ..CliConfig::new(["x"]) };
        config.env.insert("API_TOKEN".to_owned(), "hunter2hunter2-and-more".to_owned());
        let host = HOST.map(|(name, value)| (name.into(), value.into()));
        let secrets = Environment::new(&config, host.into_iter()).secrets;
        let redacted_text =
            secrets.redact("bad key hunter2hunter2-and-more or hunter2hunter2 in C".into());
        assert_eq!(redacted_text, "bad key [redacted] or [redacted] in C");
    }
}
