//! The environment of a program, and which of its values are secrets.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::config::CliConfig;
use crate::env_value::EnvValue;
use crate::secrets::Secrets;

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
    ///
    /// # Errors
    /// A variable that the configuration names is not set.
    pub(crate) fn new(
        config: &CliConfig,
        host: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, String> {
        let host: BTreeMap<OsString, OsString> = host.collect();
        let mut variables: BTreeMap<OsString, OsString> = host
            .iter()
            .filter(|(name, _)| config.inherits(&name.to_string_lossy()))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let mut secrets = Vec::new();
        for (name, value) in &config.env {
            let get =
                |env: &str| Some(host.get(&OsString::from(env))?.to_string_lossy().into_owned());
            let value = match value.clone().resolved(get)? {
                EnvValue::Secret { prefix, value } => {
                    // A program can name it without the prefix.
                    let with_prefix = prefix + &value;
                    secrets.extend([value, with_prefix.clone()]);
                    with_prefix
                }
                EnvValue::Literal(value) => value,
                EnvValue::Named(named) => named.prefix,
            };
            variables.insert(name.into(), value.into());
        }
        let by_name = variables.iter().filter(|(name, _)| {
            let upper = name.to_string_lossy().to_uppercase();
            SECRET_NAMES.iter().any(|part| upper.contains(part))
        });
        secrets.extend(by_name.map(|(_, value)| value.to_string_lossy().into_owned()));
        Ok(Self { variables, secrets: Secrets::new(secrets.into_iter()) })
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
        let environment = Environment::new(config, host.into_iter()).expect("all names are set");
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
        let config =
            CliConfig { inherit_env: crate::config::InheritEnv::All, ..CliConfig::new(["x"]) };
        check(&config, "AWS_SECRET_KEY=hunter2hunter2 EDITOR=ed LANG=C PATH=/bin");
    }

    #[test]
    fn configured_variables_override_inherited_ones() {
        let mut config = CliConfig::new(["x"]);
        config.env.insert("LANG".to_owned(), "de".to_owned().into());
        config.env.insert("API_KEY".to_owned(), "k".to_owned().into());
        check(&config, "API_KEY=k LANG=de PATH=/bin");
    }

    /// A key could only be a literal, which was stored in clear with the definition, and listing one variable took away `PATH`.
    #[test]
    fn a_secret_is_named_and_the_allowlist_is_extended() {
        let config: CliConfig = serde_json::from_str(
            r#"{"command": ["x"], "env_allowlist": ["EDITOR"], "env": {"AUTH": {"env": "AWS_SECRET_KEY", "prefix": "k="}}}"#,
        )
        .expect("it is valid");
        let environment = check(&config, "AUTH=k=hunter2hunter2 EDITOR=ed LANG=C PATH=/bin");
        assert_eq!(environment.secrets.redact("bad k=hunter2hunter2".into()), "bad [redacted]");
        let stored = serde_json::to_string(&config).expect("it is JSON");
        assert!(!stored.contains("hunter2") && stored.contains("AWS_SECRET_KEY"), "{stored}");
        let mut config = CliConfig::new(["x"]);
        let named =
            crate::env_value::NamedValue { env: "MISSING".to_owned(), prefix: String::new() };
        config.env.insert("A".to_owned(), EnvValue::Named(named));
        let refused = Environment::new(&config, std::iter::empty()).err();
        assert_eq!(refused.as_deref(), Some("the environment variable MISSING is not set"));
    }

    #[test]
    fn secrets_are_removed_from_texts() {
        let mut config =
            CliConfig { inherit_env: crate::config::InheritEnv::All, ..CliConfig::new(["x"]) };
        config.env.insert("API_TOKEN".to_owned(), "hunter2hunter2-and-more".to_owned().into());
        let host = HOST.map(|(name, value)| (name.into(), value.into()));
        let secrets = Environment::new(&config, host.into_iter()).expect("no name").secrets;
        let redacted_text =
            secrets.redact("bad key hunter2hunter2-and-more or hunter2hunter2 in C".into());
        assert_eq!(redacted_text, "bad key [redacted] or [redacted] in C");
    }
}
