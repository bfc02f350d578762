//! The stores of clouds: which URLs are of which, how each is opened with what the environment says, and how it is seen that there
//! are no credentials.
//!
//! ```text
//!   s3://BUCKET/KEY          AWS_*     S3, and what speaks it
//!   gs://BUCKET/KEY          GOOGLE_*  Google Cloud Storage
//!   az://CONTAINER/KEY       AZURE_*   Azure Blob Storage, of the account that the environment names
//!   abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY
//! ```

use std::env::{var, var_os};
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{ObjectStore, RetryConfig};
use url::Url;

use crate::transport::Connector;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cloud {
    S3,
    Google,
    Azure,
}

impl Cloud {
    pub fn of(scheme: &str) -> Option<Cloud> {
        match scheme {
            "s3" => Some(Cloud::S3),
            "gs" => Some(Cloud::Google),
            "az" | "abfs" | "abfss" => Some(Cloud::Azure),
            _ => None,
        }
    }

    /// The store that a URL's object is in. Nothing is asked for yet: this fails where the environment does not say what it has to.
    pub fn open(
        self,
        url: &Url,
        connector: Connector,
        retry: RetryConfig,
    ) -> object_store::Result<Arc<dyn ObjectStore>> {
        let bucket = url.host_str().unwrap_or_default();
        Ok(match self {
            Cloud::S3 => {
                let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                let plain = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
                let builder = if is_plain(&plain) { builder.with_allow_http(true) } else { builder };
                Arc::new(builder.with_http_connector(connector).with_retry(retry).build()?)
            }
            Cloud::Google => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
                Arc::new(builder.with_http_connector(connector).with_retry(retry).build()?)
            }
            Cloud::Azure => {
                let builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str());
                let plain = ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"];
                let builder = if is_plain(&plain) { builder.with_allow_http(true) } else { builder };
                Arc::new(builder.with_http_connector(connector).with_retry(retry).build()?)
            }
        })
    }

    /// The first variables to set for who has no credentials.
    pub fn variables(self) -> &'static str {
        match self {
            Cloud::S3 => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            Cloud::Google => "GOOGLE_APPLICATION_CREDENTIALS",
            Cloud::Azure => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        }
    }

    /// By one of these the environment has credentials; else the machine is asked for its own.
    fn credentials(self) -> &'static [&'static str] {
        match self {
            Cloud::S3 => &[
                "AWS_ACCESS_KEY_ID",
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                "AWS_SKIP_SIGNATURE",
            ],
            Cloud::Google => &[
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_SERVICE_ACCOUNT",
                "GOOGLE_SERVICE_ACCOUNT_PATH",
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                "GOOGLE_BEARER_TOKEN",
                "GOOGLE_SKIP_SIGNATURE",
            ],
            Cloud::Azure => &[
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_SAS_TOKEN",
                "AZURE_STORAGE_TOKEN",
                "AZURE_CLIENT_SECRET",
                "AZURE_FEDERATED_TOKEN_FILE",
                "AZURE_SKIP_SIGNATURE",
            ],
        }
    }

    /// Whether a request that failed so was for the machine's own credentials.
    pub fn asked_the_machine(self, failure: &str) -> bool {
        let (variables, usual): (&[&str], &[&str]) = match self {
            Cloud::S3 => (&["AWS_METADATA_ENDPOINT"], &["169.254.169.254"]),
            Cloud::Google => (
                &["GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"],
                &["metadata.google.internal", "169.254.169.254"],
            ),
            Cloud::Azure => (
                &["IDENTITY_ENDPOINT", "AZURE_IDENTITY_ENDPOINT", "AZURE_MSI_ENDPOINT"],
                &["169.254.169.254"],
            ),
        };
        let is_set = |name: &&str| var_os(name).is_some_and(|value| !value.is_empty());
        let named = variables.iter().filter_map(|name| var(name).ok()).filter(|value| !value.is_empty());
        let mut machine = named.chain(usual.iter().map(|host| host.to_string()));
        !self.credentials().iter().any(is_set) && machine.any(|host| failure.contains(&host))
    }
}

/// Whether the environment names an endpoint without TLS.
fn is_plain(variables: &[&str]) -> bool {
    variables.iter().any(|name| var(name).is_ok_and(|value| value.starts_with("http://")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rekindle_protocol::data::ProblemKind;

    use crate::store::Stores;

    #[test]
    fn objects_of_clouds_are_found_by_their_urls() {
        let stores = Stores::new(Duration::ZERO, None, Vec::new());
        for (name, path) in [
            ("s3://bucket/models/a%20b", "models/a b"),
            ("gs://bucket_1.example/models/w", "models/w"),
            ("abfss://container@account.dfs.core.windows.net/models/w", "models/w"),
            ("abfs://container@account.blob.core.windows.net/w", "w"),
        ] {
            let found = stores.find(name).map(|found| found.path.to_string());
            assert_eq!(found.map_err(|problem| problem.sentence).as_deref(), Ok(path), "{name}");
        }
        for name in ["gs://bucket", "az://container/", "abfss://container@account.dfs.core.windows.net"] {
            assert_eq!(stores.find(name).err().unwrap().kind, ProblemKind::Name, "{name}");
        }
    }

    #[test]
    fn an_account_that_is_not_known_is_asked_for_in_a_sentence() {
        let stores = Stores::new(Duration::ZERO, None, Vec::new());
        let problem = stores.find("abfss://container@account.example/w").err().unwrap();
        assert_eq!(problem.kind, ProblemKind::Access, "{problem:?}");
        let begins = "abfss://container@account.example/w cannot be asked for (";
        assert!(problem.sentence.starts_with(begins), "{problem:?}");
        assert!(problem.sentence.contains("; set AZURE_STORAGE_ACCOUNT_NAME and "), "{problem:?}");
    }
}
