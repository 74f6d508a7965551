//! Both policies of a sandbox in one file.

use atoll_core::error::Result;
use atoll_core::execution::ExecutionPolicy;
use atoll_core::policy::EgressPolicy;
use serde::{Deserialize, Serialize};

/// What a sandbox may reach and run. A half that is absent is not spoken of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policies {
    /// Where it comes from; for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<About>,
    /// What may be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// What may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionPolicy>,
}

/// Where a policy comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct About {
    /// Sandboxes whose journals it was learned from.
    pub learned_from: Vec<String>,
    /// Events that were read.
    pub events: u64,
    /// What those journals lack: what was done meanwhile is not in the policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

impl Policies {
    /// Reads a file: both in one (`egress`, `execution`), or one of them alone, as `--egress` and `--execution` take it.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn read(text: &str) -> std::result::Result<Self, String> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let has = |key: &str| value.get(key).is_some();
        let (both, egress, execution) =
            (has("egress") || has("execution"), has("internet"), has("programs") || has("mode"));
        let policies = match (both, egress, execution) {
            (true, false, false) => serde_json::from_value(value),
            (false, true, _) => {
                serde_json::from_value(value).map(|policy| Self { egress: Some(policy), ..Self::default() })
            }
            (false, false, true) => serde_json::from_value(value)
                .map(|policy| Self { execution: Some(policy), ..Self::default() }),
            _ => {
                return Err("it is no policy: write 'egress' and 'execution', or one of them alone, which \
                             begins with 'internet' or 'programs'"
                    .to_owned());
            }
        };
        let policies = policies.map_err(|error| error.to_string())?;
        policies.validate().map_err(|error| error.to_string())?;
        Ok(policies)
    }

    /// Checks both.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`] naming the field.
    pub fn validate(&self) -> Result<()> {
        if let Some(egress) = &self.egress {
            egress.validate("egress")?;
        }
        if let Some(execution) = &self.execution {
            execution.validate("execution")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_both_or_one() {
        let both =
            Policies::read(r#"{"egress":{"internet":"on"},"execution":{"programs":"image"}}"#).unwrap();
        assert!(both.egress.is_some() && both.execution.is_some());
        let egress = Policies::read(r#"{"internet":"rules","rules":[{"action":"allow","domain":"a.de"}]}"#);
        assert!(egress.is_ok_and(|policies| policies.egress.is_some() && policies.execution.is_none()));
        let execution = Policies::read(r#"{"programs":"image"}"#).unwrap();
        assert!(execution.egress.is_none() && execution.execution.is_some());
        for bad in [
            "{}",
            "[]",
            "x",
            r#"{"egres":{}}"#,
            r#"{"egress":{"internet":"on"},"internet":"on"}"#,
            r#"{"egress":{"internet":"maybe"}}"#,
            r#"{"egress":{},"more":1}"#,
            r#"{"programs":"listed"}"#,
        ] {
            assert!(Policies::read(bad).is_err(), "{bad}");
        }
    }
}
