//! The rights of an identity: options of `abide identity` and `abide token`.

use std::collections::{BTreeMap, BTreeSet};

use abide_client::arguments::{CallLimits, CreateIdentity, RateLimit};
use clap::Args;

use crate::failure::Failure;
use crate::units;

/// The rights of an identity.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct GrantOptions {
    /// Its capabilities, repeated or separated by commas; '*' is all
    #[arg(long = "capability", value_name = "CAPABILITY", value_delimiter = ',')]
    pub(crate) capabilities: Vec<String>,

    /// Its scope: it reaches rows of this scope only; repeated or separated by commas for several keys
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = parse_scope_entry)]
    pub(crate) scope: Vec<(String, String)>,

    /// Its rate limit: 100/1s is a burst of 100 and then 100 a second
    #[arg(long, value_name = "CALLS/TIME", value_parser = parse_rate_limit)]
    pub(crate) rate: Option<RateLimit>,

    /// Its quota in each period: 10000/1d
    #[arg(long, value_name = "CALLS/TIME", value_parser = parse_rate_limit)]
    pub(crate) quota: Option<RateLimit>,
}

impl GrantOptions {
    /// Refuses options that contradict each other.
    ///
    /// # Errors
    /// A key of the scope is given twice.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let mut keys = BTreeSet::new();
        match self.scope.iter().find(|(key, _)| !keys.insert(key)) {
            None => Ok(()),
            Some((key, _)) => Err(Failure::usage(
                format!("--scope names the key {key:?} twice"),
                "a scope has one value for each key",
            )),
        }
    }

    /// The capabilities, if some are given.
    pub(crate) fn capability_set(&self) -> Option<BTreeSet<String>> {
        (!self.capabilities.is_empty()).then(|| self.capabilities.iter().cloned().collect())
    }

    /// The scope, if one is given.
    pub(crate) fn scope(&self) -> Option<BTreeMap<String, String>> {
        (!self.scope.is_empty()).then(|| self.scope.iter().cloned().collect())
    }

    pub(crate) fn limits(&self) -> Option<CallLimits> {
        let limits = CallLimits { rate: self.rate, quota: self.quota };
        (limits != CallLimits::default()).then_some(limits)
    }

    pub(crate) fn identity(&self, id: &str, role: &str) -> CreateIdentity {
        CreateIdentity {
            capabilities: self.capability_set(),
            scope: self.scope(),
            limits: self.limits(),
            ..CreateIdentity::new(id, role)
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.capabilities.is_empty() && self.scope.is_empty() && self.limits().is_none()
    }
}

fn parse_scope_entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("expected KEY=VALUE, such as tenant=acme".to_owned()),
    }
}

/// So many calls in a length of time.
pub(crate) fn parse_rate_limit(text: &str) -> Result<RateLimit, String> {
    const EXPECTED: &str = "expected CALLS/TIME, such as 100/1s";
    let (calls, span) = text.split_once('/').ok_or(EXPECTED)?;
    let calls = calls.parse().map_err(|_| EXPECTED)?;
    let per_ms = i64::try_from(units::parse_duration(span)?.as_millis()).map_err(|_| EXPECTED)?;
    Ok(RateLimit { calls, per_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `--scope tenant=acme,end_user=u1` was one key with the value `acme,end_user=u1`.
    #[test]
    fn keys_of_a_scope_are_separated_by_commas() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            grants: GrantOptions,
        }
        let parse = |args: &[&str]| {
            let words = ["line"].iter().chain(args);
            <Line as clap::Parser>::try_parse_from(words).map(|line| line.grants.scope())
        };
        let pairs = [("end_user", "u1"), ("tenant", "acme")];
        let both: BTreeMap<String, String> =
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        for args in [
            &["--scope", "tenant=acme,end_user=u1"][..],
            &["--scope", "tenant=acme", "--scope", "end_user=u1"],
        ] {
            assert_eq!(parse(args).expect("the line is valid"), Some(both.clone()), "{args:?}");
        }
        for wrong in ["tenant=acme,u1", "tenant=acme,", ",tenant=acme"] {
            assert!(parse(&["--scope", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn grants_print_as_they_are_written() {
        assert_eq!(parse_scope_entry("tenant=a=b"), Ok(("tenant".to_owned(), "a=b".to_owned())));
        assert_eq!(parse_rate_limit("100/1s"), Ok(RateLimit { calls: 100, per_ms: 1_000 }));
        for wrong in ["100", "100/", "x/1s", "/1s", "100/1x"] {
            assert!(parse_rate_limit(wrong).is_err(), "{wrong}");
        }
        assert!(
            parse_scope_entry("tenant").is_err()
                && parse_scope_entry("=acme").is_err()
                && parse_scope_entry("tenant=").is_err()
        );
    }
}
