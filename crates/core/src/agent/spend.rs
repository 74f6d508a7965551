//! What a conversation spends on models, and how much it may.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::SessionId;
use crate::policy::EgressPolicy;

/// What was asked of models, as the gateway saw it in their answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ModelUsage {
    /// Requests that were sent to models.
    #[serde(default)]
    pub requests: u64,
    /// Tokens that models read, those of their caches included.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens that models wrote.
    #[serde(default)]
    pub output_tokens: u64,
    /// Requests whose answers did not say how many tokens they took; those are counted by their size, a token for four bytes.
    #[serde(default)]
    pub untold: u64,
}

impl ModelUsage {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            untold: self.untold.saturating_add(other.untold),
        }
    }

    /// Tokens of both kinds.
    #[must_use]
    pub const fn tokens(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Whether nothing was asked.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.requests == 0 && self.tokens() == 0
    }
}

/// How much may be asked of models. What is absent is not bounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ModelBudget {
    /// Requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens of both kinds. The answer with which they are used up is passed on; the next request is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

impl ModelBudget {
    /// What of it is used up, in words.
    #[must_use]
    pub fn used_up(&self, used: ModelUsage) -> Option<String> {
        let over = |budget: Option<u64>, used: u64| budget.filter(|budget| used >= *budget);
        if let Some(budget) = over(self.requests, used.requests) {
            return Some(format!("{} of {budget} requests to models are used", used.requests));
        }
        let budget = over(self.tokens, used.tokens())?;
        Some(format!("{} of {budget} tokens are used", used.tokens()))
    }

    /// Checks form and range.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] naming the field.
    pub fn validate(&self, field: &str) -> Result<()> {
        match (self.requests, self.tokens) {
            (None, None) => Err(Error::invalid(field, "give 'requests', 'tokens', or both")),
            (Some(0), _) | (_, Some(0)) => Err(Error::invalid(field, "must be more than nothing")),
            _ => Ok(()),
        }
    }
}

/// What stands between a placeholder and the session that has it.
const MARK: char = '_';

/// A placeholder with the mark of a session, by which the gateway tells whose requests it sees.
#[must_use]
pub fn marked(placeholder: &str, session: &SessionId) -> String {
    format!("{placeholder}{MARK}{session}")
}

/// Takes the first mark out that follows a placeholder in a text; gives the text without it.
#[must_use]
pub fn unmarked(text: &str, placeholder: &str) -> Option<(String, SessionId)> {
    let (before, after) = text.split_once(placeholder)?;
    let mark = after.strip_prefix(MARK)?;
    // Up to what no id has.
    let end = mark.find(|character: char| !character.is_ascii_alphanumeric()).unwrap_or(mark.len());
    let session = mark[..end].parse().ok()?;
    Some((format!("{before}{placeholder}{}", &mark[end..]), session))
}

/// The variables of a session's process: the placeholders of its sandbox, marked. Those that are replaced elsewhere than in
/// headers stay as they are.
pub fn marked_env(policy: &EgressPolicy, session: &SessionId) -> impl Iterator<Item = (String, String)> {
    let placeholders = policy.inject.iter().flat_map(|rule| &rule.placeholders);
    placeholders
        .filter(|placeholder| !(placeholder.path || placeholder.query || placeholder.body))
        .filter_map(|placeholder| {
            Some((placeholder.env.clone()?, marked(placeholder.value.as_deref()?, session)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_put_on_and_taken_off() {
        let session = SessionId::from_parts(1, 2);
        let text = format!("Bearer {} more", marked("sk-abc", &session));
        assert_eq!(unmarked(&text, "sk-abc"), Some(("Bearer sk-abc more".to_owned(), session.clone())));
        let alone = marked("sk-abc", &session);
        assert_eq!(unmarked(&alone, "sk-abc"), Some(("sk-abc".to_owned(), session)));
        for text in ["sk-abc", "sk-abc_", "sk-abc_se12", "other", "sk-abcse06h0fnkztqpmrq1d8y2w"] {
            assert_eq!(unmarked(text, "sk-abc"), None, "{text}");
        }
    }

    #[test]
    fn budgets() {
        let budget = ModelBudget { requests: Some(2), tokens: Some(100) };
        let used = |requests, input_tokens| ModelUsage { requests, input_tokens, ..ModelUsage::default() };
        assert_eq!(budget.used_up(used(1, 99)), None);
        assert!(budget.used_up(used(2, 0)).unwrap().contains("2 of 2 requests"));
        assert!(budget.used_up(used(1, 100)).unwrap().contains("100 of 100 tokens"));
        assert_eq!(ModelBudget::default().used_up(used(u64::MAX, u64::MAX)), None);
        assert!(ModelBudget::default().validate("budget").is_err());
        assert!(ModelBudget { requests: Some(0), tokens: None }.validate("budget").is_err());
        budget.validate("budget").unwrap();
        let most = used(u64::MAX, u64::MAX);
        assert_eq!(most.plus(used(1, 1)), most);
    }
}
