//! Headers that are between two neighbours, and those that say who asks.

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::{Uri, http::uri::PathAndQuery};

use crate::proxy::Client;

const HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];
/// What the names begin with of headers that say which way a request came.
const FORWARDED: &[u8] = b"x-forwarded-";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What a request wants the connection to become, if it does.
pub fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = tokens(headers).any(|token| token.eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| asks).cloned()
}

/// Removes what is not for whom comes next.
pub fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        tokens(headers).filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok()).collect();
    // A body of unknown length has no other one, whatever is said beside it.
    let is_chunked = headers.contains_key(TRANSFER_ENCODING);
    for name in named.iter().chain(&HOP) {
        headers.remove(name);
    }
    if is_chunked {
        headers.remove(CONTENT_LENGTH);
    }
}

/// Makes one field of all cookies: HTTP/2 lets each be in a field of its own, of which programs that know HTTP/1.1 alone may
/// read no more than the first (RFC 9113, section 8.2.3).
pub fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

/// Makes a client's headers those of the request to an instance.
pub fn forward(
    headers: &mut HeaderMap,
    uri: &Uri,
    Client { ip, is_secure, is_proxy }: Client,
    upgrade: Option<HeaderValue>,
) {
    strip(headers);
    // The gateway has asked for the body already.
    headers.remove(EXPECT);
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
    if let Some(authority) = uri.authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        headers.insert(HOST, host);
    }
    if !is_proxy {
        let claims: Vec<HeaderName> = headers.keys().filter(|name| tells_way(name)).cloned().collect();
        for name in claims {
            headers.remove(name);
        }
    }
    let client = ip.to_canonical().to_string();
    let before = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
    let chain = before.chain([client.as_str()]).collect::<Vec<_>>().join(", ");
    if let Ok(chain) = HeaderValue::from_str(&chain) {
        headers.insert(FORWARDED_FOR, chain);
    }
    let scheme = if is_secure { "https" } else { "http" };
    headers.entry(FORWARDED_PROTO).or_insert(HeaderValue::from_static(scheme));
}

/// Whether a header says which way a request came. Programs believe that, so that only a known proxy may say it. Interfaces such as
/// WSGI make no difference between `-` and `_`.
fn tells_way(name: &HeaderName) -> bool {
    let is_same = |(has, wanted): (u8, &u8)| has == *wanted || (has == b'_' && *wanted == b'-');
    let name = name.as_str();
    name == "forwarded" || (name.len() >= FORWARDED.len() && name.bytes().zip(FORWARDED).all(is_same))
}

/// A request's target as an instance is told it: without scheme and host.
pub fn target(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Uri::from(path)
}

/// Makes an instance's headers those of the answer.
pub fn answer(headers: &mut HeaderMap, upgrade: bool) {
    let became = headers.get(UPGRADE).filter(|_| upgrade).cloned();
    strip(headers);
    headers.remove(TRAILER);
    if let Some(became) = became {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, became);
    }
}

fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let mut map = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            map.append(name, value);
        }
        map
    }

    fn client(ip: &str) -> Client {
        Client { ip: ip.parse().unwrap(), is_secure: false, is_proxy: false }
    }

    #[test]
    fn what_is_between_neighbours_stays_there() {
        let mut map = headers(&[
            ("connection", "close, X-Own"),
            ("x-own", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("expect", "100-continue"),
            ("upgrade", "h2c"),
            ("accept", "*/*"),
            ("x-forwarded-for", "192.0.2.1"),
        ]);
        assert_eq!(wanted_upgrade(&map), None);
        forward(&mut map, &Uri::from_static("http://example/a?b"), client("127.0.0.1"), None);
        let wanted = [
            ("accept", "*/*"),
            ("host", "example"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-proto", "http"),
        ];
        assert_eq!(map, headers(&wanted));
        assert_eq!(target(&Uri::from_static("http://example/a?b")), "/a?b");
        assert_eq!(target(&Uri::from_static("*")), "*");
    }

    #[test]
    fn cookies_that_come_in_several_fields_go_on_in_one() {
        let mut map =
            headers(&[("cookie", "a=1"), ("accept", "*/*"), ("cookie", "b=2; c=3"), ("cookie", "d=4")]);
        map.append(COOKIE, HeaderValue::from_bytes(b"e=\xff").unwrap());
        join_cookies(&mut map);
        let cookies: Vec<&[u8]> = map.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(cookies, [b"a=1; b=2; c=3; d=4; e=\xff"]);
    }

    #[test]
    fn what_a_client_says_of_how_it_came_is_not_believed() {
        let mut map = headers(&[
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-for", "192.0.2.2"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "elsewhere"),
            ("x-forwarded-prefix", "/admin"),
            ("x_forwarded_proto", "https"),
            ("forwarded", "for=192.0.2.1;proto=https"),
            ("x-forward", "other"),
        ]);
        forward(&mut map, &Uri::from_static("/"), client("::ffff:198.51.100.7"), None);
        let wanted =
            [("x-forward", "other"), ("x-forwarded-for", "198.51.100.7"), ("x-forwarded-proto", "http")];
        assert_eq!(map, headers(&wanted));
    }

    #[test]
    fn what_a_known_proxy_says_is_kept() {
        let said =
            [("x-forwarded-for", "192.0.2.1"), ("x-forwarded-proto", "https"), ("x-forwarded-host", "a")];
        let mut map = headers(&said);
        let proxy = Client { is_proxy: true, ..client("198.51.100.7") };
        forward(&mut map, &Uri::from_static("/"), proxy, None);
        let mut wanted = headers(&said);
        wanted.insert(FORWARDED_FOR, HeaderValue::from_static("192.0.2.1, 198.51.100.7"));
        assert_eq!(map, wanted);
    }

    #[test]
    fn an_upgrade_is_passed_on_where_it_is_asked_for() {
        let mut map =
            headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket"), ("host", "a")]);
        let upgrade = wanted_upgrade(&map);
        forward(&mut map, &Uri::from_static("/"), client("127.0.0.1"), upgrade);
        assert_eq!((map[UPGRADE].as_bytes(), map[HOST].as_bytes()), (&b"websocket"[..], &b"a"[..]));
        let mut back = headers(&[("connection", "upgrade"), ("upgrade", "websocket")]);
        answer(&mut back, true);
        assert_eq!(back.len(), 2);
        answer(&mut back, false);
        assert!(back.is_empty());
    }
}
