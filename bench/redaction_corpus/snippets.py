# ruff: noqa: E501 - tables of phrases and formats read best one to a line
"""Define phrasings around values: one set that the rules were developed against, and a held-out set.

The held-out half has other phrasings, other carriers (see `carriers.py`) and, in the bench, values drawn by Faker from
its own locales' formats.
"""

_TOKEN_DEV = [
    "using {v} for the upload",
    "key={v}",
    '"key": "{v}"',
    "export KEY={v}",
    "leaked {v} in the build log",
    "({v})",
]
_TOKEN_HELD = [
    "the bot found `{v}` in config.py",
    "curl -H 'X-Key: {v}' https://api.host/v1",
    "remote: {v}",
    "value -> {v}, rotate it",
    "'{v}',",
]

DEVELOPMENT: dict[str, list[str]] = {
    "email": ["write to {v} please", "<{v}>", "mailto:{v}", '"to": "{v}"', "user={v}&x=1", "From: {v}", "({v}, owner)", "cc {v}; thanks"],
    "phone": ["call me at {v}", "tel: {v}", '"phone": "{v}"', "my number is {v}.", "Phone {v}, ask for the desk", "reach us: {v}"],
    "phone_digits": ['"phone": "{v}"', "phone={v}", "mobile: {v}", "tel {v}"],
    "card": ["card {v}", "paid with {v} today", '"card_number": "{v}"', "{v} exp 12/29", "CC:{v}"],
    "iban": ["IBAN {v}", "transfer to {v}.", '"iban": "{v}"', "account {v} at the bank"],
    "us_ssn": ["SSN {v}", "ssn: {v}", '"ssn": "{v}"', "her number {v} was wrong"],
    "uk_nino": ["NI number {v}", '"nino": "{v}"', "insurance {v}, please"],
    "de_tax_id": ["Steuer-ID {v}", '"tax_id": "{v}"', "IdNr. {v}"],
    "fr_nir": ["NIR {v}", "sécu: {v}", '"nir": "{v}"'],
    "es_id": ["DNI {v}", '"dni": "{v}"', "documento {v}, Madrid"],
    "it_fiscal_code": ["codice fiscale {v}", '"cf": "{v}"', "CF: {v}."],
    "nl_bsn": ["BSN {v}", '"bsn": "{v}"', "burgerservicenummer: {v}"],
    "br_cpf": ["CPF {v}", '"cpf": "{v}"', "contribuinte {v}"],
    "in_aadhaar": ["Aadhaar {v}", '"aadhaar": "{v}"', "uid {v} verified"],
    "in_pan": ["PAN {v}", '"pan": "{v}"', "card {v} issued"],
    "pl_pesel": ["PESEL {v}", '"pesel": "{v}"', "pesel: {v}"],
    "ip": ["from {v}", "client={v}", '"remote_addr": "{v}"', "[{v}]", "ping {v} failed", "connect to {v} refused"],
    "private_key": ["{v}", "cat id_rsa\n{v}\n", "key: |\n{v}"],
    "jwt": ["Authorization: Bearer {v}", "jwt {v}", '"id_token": "{v}"', "cookie: session={v}; path=/"],
    "password": ["password={v}", '"password": "{v}"', "DB_PASSWORD={v}", "password: {v}", "--password {v}", "PWD={v};", "my password is {v}", "passwd = '{v}'"],
    "aws_secret": ["aws_secret_access_key = {v}", '"SecretAccessKey": "{v}"', "AWS_SECRET_ACCESS_KEY={v}"],
    "azure_storage_key": ["DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={v};EndpointSuffix=core.windows.net"],
    "secret": ["api_key={v}", '"client_secret": "{v}"', "SECRET_KEY = '{v}'", "x-api-key: {v}", "token: {v}", "--token {v}", "auth_token={v}", '"access_token": "{v}"'],
    "slack_webhook": ["curl -X POST {v}", '"webhook": "{v}"'],
    "url_password": ["postgres://svc:{v}@db.internal:5432/app", "redis://:{v}@cache:6379/0", "https://bot:{v}@git.host.io/r.git"],
    "basic": ["Authorization: Basic {v}"],
}  # fmt: skip
HELD_OUT: dict[str, list[str]] = {
    "email": ["Reply-To={v}", "contact {v} (on call)", "'{v}',", "user {v} not found", "signed in as {v}!", "|{v}|", "assignee={v}\t", "Co-authored-by: X <{v}>"],
    "phone": ["dial {v} for help", "Mobile: {v}", '"contact_number":"{v}"', "fax {v}", "ring {v} or write", "WhatsApp {v}", "he left {v} as his number"],
    "phone_digits": ["'mobile_phone': '{v}'", "<phone>{v}</phone>", "cell={v}&x=2", "Telefon: {v}"],
    "card": ["PAN={v}", "charge {v} failed: declined", "'number': '{v}'", "Visa {v}, CVC on file", "<card>{v}</card>"],
    "iban": ["wire it to {v} until Friday", "iban={v}&bic=X", "'account': '{v}'", "Kontonummer {v}"],
    "us_ssn": ["social security number {v}", "taxpayer {v} matched", "'ssn':'{v}'"],
    "uk_nino": ["National Insurance: {v}", "nino={v}&y=1", "employee {v} starts Monday"],
    "de_tax_id": ["Steueridentifikationsnummer: {v}", "steuer_id={v}", "meine Nummer ist {v}."],
    "fr_nir": ["numéro de sécurité sociale {v}", "nir={v};", "assuré {v} trouvé"],
    "es_id": ["NIF: {v}", "con documento {v}.", "nie={v}&p=2"],
    "it_fiscal_code": ["il codice è {v}", "codice_fiscale={v}", "paziente {v};"],
    "nl_bsn": ["bsn={v}", "BSN-nummer {v}", "'bsn': {v}"],
    "br_cpf": ["cliente {v} ativo", "cpf={v}", "meu CPF é {v}"],
    "in_aadhaar": ["aadhaar no. {v}", "KYC with {v} done", "aadhaar_number={v}"],
    "in_pan": ["pan_number={v}", "tax account {v} linked", "PAN card: {v}"],
    "pl_pesel": ["numer PESEL: {v}", "pesel={v}", "PESEL pacjenta {v}"],
    "ip": ["host {v} is down", "{v} - - GET /", "ssh root@{v}", "X-Forwarded-For: {v}", "http://{v}/admin", "addr='{v}'"],
    "private_key": ["echo '{v}' > key.pem", "PRIVATE={v}", "here it is:\n{v}\nthanks"],
    "jwt": ["token={v}&next=/", "set-cookie: auth={v}; HttpOnly", "{v}"],
    "password": ["Password: {v}", "spring.datasource.password={v}", "login with password '{v}'", "<password>{v}</password>", "MYSQL_ROOT_PASSWORD: {v}", "the passphrase is {v}", "user=sa;password={v};Encrypt=yes", "?user=x&password={v}&y=1", "mysql -u root -p{v} app"],
    "aws_secret": ["secret_access_key: {v}", "aws configure set aws_secret_access_key {v}", "secretAccessKey: '{v}',"],
    "azure_storage_key": ["--account-key {v}", "account_key='{v}'", "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={v}"],
    "secret": ["apiKey: '{v}',", "CLIENT_SECRET={v}", "X-Auth-Token: {v}", "signing_key: {v}", "?api_key={v}&q=1", "os.environ['API_TOKEN'] = '{v}'", "secret => '{v}'", "{'accessToken': '{v}'}"],
    "slack_webhook": ["notify({v})", "SLACK_URL={v}"],
    "url_password": ["amqp://worker:{v}@mq.prod:5671//", "mongodb+srv://app:{v}@cluster0.ab.mongodb.net/?retryWrites=true", "jdbc:mysql://root:{v}@db.prod/x"],
    "basic": ["-H 'authorization: basic {v}'", '"Authorization": "Basic {v}"'],
}  # fmt: skip
for _kind in ("aws_key", "github_token", "github_pat", "gitlab_token", "slack_token", "stripe_key", "openai_key",
              "anthropic_key", "google_key", "google_oauth", "hf_token", "npm_token", "pypi_token", "twilio_key",
              "sendgrid_key"):  # fmt: skip
    DEVELOPMENT[_kind] = _TOKEN_DEV
    HELD_OUT[_kind] = _TOKEN_HELD
