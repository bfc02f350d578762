//! Declared data by the name that a request can say, and the objects that it may name for it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// `NAME`, for which nothing else may be named, or `NAME=BEGINNING`: an object whose URL begins so. One name may stand in several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSlot {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beginning: Option<String>,
}

impl DataSlot {
    /// Whether this object may be named, which is [written plainly](is_plain).
    pub fn allows(&self, url: &str) -> bool {
        self.beginning.as_ref().is_some_and(|beginning| url.starts_with(beginning.as_str()))
    }
}

impl FromStr for DataSlot {
    type Err = String;

    fn from_str(text: &str) -> Result<DataSlot, String> {
        let (name, beginning) = match text.split_once('=') {
            Some((name, beginning)) => (name, Some(beginning)),
            None => (text, None),
        };
        // With the whole of bucket or host: another one's name may go on differently.
        let is_whole = |beginning: &str| {
            let rest = beginning.split_once("://").map(|(_, rest)| rest);
            is_plain(beginning) && rest.is_some_and(|rest| rest.contains('/'))
        };
        match is_name(name) && beginning.is_none_or(is_whole) {
            true => Ok(DataSlot { name: name.to_string(), beginning: beginning.map(str::to_string) }),
            false => Err("expected NAME, or NAME=BEGINNING of URLs such as weights=s3://BUCKET/".to_string()),
        }
    }
}

impl fmt::Display for DataSlot {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.beginning {
            Some(beginning) => write!(to, "{}={beginning}", self.name),
            None => to.write_str(&self.name),
        }
    }
}

/// Whether it is the name of a slot: an identifier of ASCII letters.
pub fn is_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && text.chars().all(is_letter)
}

/// Whether a URL is what it looks like: nothing in it leads elsewhere than its beginning says, however it is read.
pub fn is_plain(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let lower = rest.to_ascii_lowercase();
    let has_no_escape = ["%2f", "%5c", "%2e", "%00"].iter().all(|escape| !lower.contains(escape));
    !scheme.is_empty()
        && scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"\\?#,\"<>".contains(&byte))
        && has_no_escape
        && rest.split('/').all(|segment| segment != "." && segment != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_has_the_whole_of_its_bucket() {
        for text in ["weights", "a_1=s3://bucket/", "a=file:///srv/models/", "a=http://host:80/a=b"] {
            assert_eq!(text.parse::<DataSlot>().unwrap().to_string(), text);
        }
        for text in
            ["", "=s3://bucket/", "1a", "a b", "a=", "a=s3://bucket", "a=bucket/", "a=s3://bucket/../"]
        {
            assert!(text.parse::<DataSlot>().is_err(), "{text}");
        }
    }

    #[test]
    fn nothing_is_allowed_that_only_begins_as_what_is() {
        let slot: DataSlot = "a=s3://bucket/models/".parse().unwrap();
        assert!(slot.allows("s3://bucket/models/one"));
        for url in
            ["s3://bucket/models", "s3://bucket/other", "S3://bucket/models/one", "s3://bucket-2/models/one"]
        {
            assert!(!slot.allows(url), "{url}");
        }
        assert!(!"a".parse::<DataSlot>().unwrap().allows("s3://bucket/models/one"));
    }

    #[test]
    fn a_url_that_could_lead_elsewhere_is_not_plain() {
        assert!(is_plain("s3://bucket/a%20b/c+d=e;f") && is_plain("file:///srv/a.b/..c"));
        for url in [
            "s3:/bucket/a",
            "://bucket/a",
            "s3 ://bucket/a",
            "file:///srv/models/../secret",
            "file:///srv/models/./a",
            "file:///srv/models/%2E%2e/secret",
            "file:///srv/models/..%2fsecret",
            "file:///srv/models/a\\..\\b",
            "http://host/a?b",
            "http://host/a#b",
            "s3://bucket/a b",
            "s3://bucket/ä",
            "s3://bucket/a,b",
        ] {
            assert!(!is_plain(url), "{url}");
        }
    }
}
