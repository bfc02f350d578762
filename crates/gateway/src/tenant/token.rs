//! Tokens that clients show. One is told once, when it is made; what is kept of it tells it, and cannot be told from.
//!
//! A token is 256 random bits, which nobody guesses: so its plain hash is kept, and needs no salt. It begins with a number of
//! its own, by which it is found; only then are hashes compared, in constant time.

use std::fs::File;
use std::io::{self, Read};

use blake3::Hash;
use hyper::header::{AUTHORIZATION, HeaderMap};
use serde::{Deserialize, Serialize};

/// What every token begins with, so that one that was lost is known for what it is.
const PREFIX: &str = "rekindle";
const ID_BYTES: usize = 4;
const SECRET_BYTES: usize = 32;

/// What is kept of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub id: String,
    #[serde(with = "hex")]
    hash: Hash,
    /// When it was made.
    pub created: String,
}

/// A token as a client shows it.
pub(crate) struct PresentedToken<'a> {
    whole: &'a str,
    id: &'a str,
}

impl Token {
    /// What is kept, and what is told.
    pub fn make(created: String) -> io::Result<(Token, String)> {
        let (id, secret) = (random::<ID_BYTES>()?, random::<SECRET_BYTES>()?);
        let told = format!("{PREFIX}-{id}-{secret}");
        Ok((Token { hash: blake3::hash(told.as_bytes()), id, created }, told))
    }

    pub(crate) fn is(&self, shown: &PresentedToken<'_>) -> bool {
        // The comparison of hashes takes as long whatever they are.
        self.id == shown.id && self.hash == blake3::hash(shown.whole.as_bytes())
    }
}

impl PresentedToken<'_> {
    /// What a request shows; none if it shows nothing, or what can be no token.
    pub fn of(headers: &HeaderMap) -> Option<PresentedToken<'_>> {
        let mut all = headers.get_all(AUTHORIZATION).iter();
        let (scheme, whole) = all.next()?.to_str().ok()?.split_once(' ')?;
        let whole = whole.trim();
        let (id, _) = whole.strip_prefix(PREFIX)?.strip_prefix('-')?.split_once('-')?;
        (scheme.eq_ignore_ascii_case("bearer") && all.next().is_none())
            .then_some(PresentedToken { whole, id })
    }
}

fn random<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

mod hex {
    use blake3::Hash;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(hash: &Hash, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hash.to_hex())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Hash, D::Error> {
        Hash::from_hex(String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn a_token_is_told_once_and_known_again() {
        let (token, told) = Token::make("now".into()).unwrap();
        let (other, _) = Token::make("now".into()).unwrap();
        let kept = serde_json::to_string(&token).unwrap();
        assert!(!kept.contains(told.rsplit('-').next().unwrap()), "{kept}");
        let token: Token = serde_json::from_str(&kept).unwrap();
        for scheme in ["Bearer", "bearer", "BEARER "] {
            let headers = with(&format!("{scheme} {told}"));
            let shown = PresentedToken::of(&headers).unwrap();
            assert!(token.is(&shown) && !other.is(&shown));
        }
        // With another's number it is neither.
        let headers = with(&format!("Bearer {}", told.replace(&token.id, &other.id)));
        let shown = PresentedToken::of(&headers).unwrap();
        assert!(!token.is(&shown) && !other.is(&shown));
        assert!(serde_json::from_str::<Token>(r#"{"id":"a","hash":"b","created":"c"}"#).is_err());
    }

    #[test]
    fn what_can_be_no_token_is_none() {
        let (_, told) = Token::make("now".into()).unwrap();
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer x-1-2", "Bearer rekindle-", &format!("Basic {told}"), &told]
        {
            assert!(PresentedToken::of(&with(wrong)).is_none(), "{wrong}");
        }
        assert!(PresentedToken::of(&HeaderMap::new()).is_none());
        // Whoever shows two is not asked which is meant.
        let mut two = with(&format!("Bearer {told}"));
        two.append(AUTHORIZATION, HeaderValue::from_static("Basic a"));
        assert!(PresentedToken::of(&two).is_none());
    }
}
