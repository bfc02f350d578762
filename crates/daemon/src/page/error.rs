//! What can go wrong with the page in the browser.

use std::net::SocketAddr;

#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error(
        "the page cannot be at {address}: {why}; choose another place by `rekindled --page-port [ADDRESS:]PORT`"
    )]
    NoPort { address: SocketAddr, why: String },

    #[error("{why}")]
    NoPage { why: String },

    #[error(
        "the page is switched off; start rekindled with `--page-port 7070`, or put `port = \"7070\"` below `[page]` into \
         rekindled.toml"
    )]
    Off,
}
