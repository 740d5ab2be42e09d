"""The word lists of the synthetic data set.

A topic has three facets. People who write tasks and people who write servers name the same thing differently, so a
facet has words of its tasks, words of its servers, and words that both use.
"""

from __future__ import annotations

from typing import NamedTuple


class Facet(NamedTuple):
    """One facet of a topic: its name, and the words that tasks, servers, or both use for it."""

    name: str
    task: tuple[str, ...]
    server: tuple[str, ...]
    shared: tuple[str, ...]


def _facet(name: str, task: str, server: str, shared: str) -> Facet:
    return Facet(name, tuple(task.split()), tuple(server.split()), tuple(shared.split()))


TOPICS: dict[str, tuple[Facet, Facet, Facet]] = {
    "database tools": (
        _facet("query tuning", "slow latency bottleneck report", "postgres planner profiler explain", "query index"),
        _facet(
            "schema migration", "upgrade evolve legacy tables", "ddl alembic rollback versioner", "schema migration"
        ),
        _facet("record search", "customers lookup fuzzy archive", "lucene elastic shard facet", "record search"),
    ),
    "browser automation": (
        _facet("page testing", "checkout regression clicks flaky", "playwright headless selector harness", "page test"),
        _facet("web scraping", "prices competitors collect daily", "crawler spider extractor sitemap", "web scrape"),
        _facet(
            "form filling", "applications repetitive paperwork submit", "autofill puppeteer macro dom", "form field"
        ),
    ),
    "cloud operations": (
        _facet("cost control", "bill savings waste forecast", "billing quota rightsizing meter", "cost budget"),
        _facet(
            "container scaling", "traffic peak outage growth", "kubernetes pod helm autoscaler", "container cluster"
        ),
        _facet("access policy", "permissions audit least review", "iam role vault credential", "access policy"),
    ),
    "finance data": (
        _facet("market prices", "portfolio trading signals stocks", "ticker quote candle exchange", "market price"),
        _facet(
            "fraud checks", "suspicious chargeback transactions alarm", "scoring sanction ledger risk", "fraud payment"
        ),
        _facet(
            "bookkeeping", "monthly reconcile receipts taxes", "invoice accounting journal erp", "bookkeeping account"
        ),
    ),
    "health care": (
        _facet("patient records", "clinic history doctors intake", "fhir ehr terminology snomed", "patient record"),
        _facet("medical imaging", "tumour radiology scans triage", "dicom segmentation pacs voxel", "medical image"),
        _facet("drug research", "molecules candidates trials side", "chembl docking assay compound", "drug protein"),
    ),
    "maps and travel": (
        _facet("route planning", "drivers detour deliveries fleet", "osm geocoder directions isochrone", "route map"),
        _facet("trip booking", "holiday cheap itinerary hotels", "airline fare reservation gds", "trip flight"),
        _facet("weather alerts", "storms farmers warning season", "meteo radar forecastapi grib", "weather alert"),
    ),
    "messaging": (
        _facet("team chat", "standup colleagues questions remote", "slack discord webhook bot", "team chat"),
        _facet("mail handling", "inbox overload reply newsletters", "imap smtp mailbox thread", "mail message"),
        _facet(
            "call transcripts",
            "interviews minutes decisions recordings",
            "whisper diarization speech asr",
            "call transcript",
        ),
    ),
    "code quality": (
        _facet(
            "bug hunting", "crash reproduce production exceptions", "debugger stacktrace breakpoint sentry", "bug error"
        ),
        _facet("code review", "merge style reviewers feedback", "linter diff pullrequest github", "code review"),
        _facet(
            "dependency safety",
            "vulnerable outdated libraries supply",
            "cve sbom scanner advisory",
            "dependency package",
        ),
    ),
    "knowledge work": (
        _facet("note keeping", "ideas organise remember reading", "obsidian markdown vault backlink", "note memory"),
        _facet(
            "document answers",
            "manuals employees ask policies",
            "retrieval embedding chunk vectorstore",
            "document answer",
        ),
        _facet(
            "literature review", "papers survey citations thesis", "arxiv bibtex scholar doi", "literature abstract"
        ),
    ),
    "media creation": (
        _facet("image editing", "banners retouch background product", "diffusion svg canvas pillow", "image edit"),
        _facet("video production", "clips subtitles trailer social", "ffmpeg timeline codec render", "video scene"),
        _facet("music making", "melody podcast mood soundtrack", "midi daw synth waveform", "music audio"),
    ),
    "robotics": (
        _facet("arm control", "grasp pick assembly fragile", "ros gripper kinematics servo", "arm robot"),
        _facet(
            "vehicle safety", "lane pedestrians braking collision", "lidar carla perception canbus", "vehicle sensor"
        ),
        _facet("warehouse flow", "pallets orders aisles congestion", "agv slam dispatcher barcode", "warehouse fleet"),
    ),
    "monitoring": (
        _facet("log analysis", "incidents root cause noisy", "loki grep kibana parser", "log event"),
        _facet(
            "metric alerts",
            "oncall thresholds anomalies dashboard",
            "prometheus grafana exporter telemetry",
            "metric alert",
        ),
        _facet("home devices", "energy rooms thermostat comfort", "mqtt zigbee homeassistant gateway", "home device"),
    ),
    "education": (
        _facet("exam practice", "students quiz grades mistakes", "flashcard anki rubric itembank", "exam lesson"),
        _facet(
            "language learning",
            "pronunciation beginners vocabulary travel",
            "dictionary corpus tokenizer ipa",
            "language word",
        ),
        _facet(
            "course planning", "curriculum teachers semester goals", "lms moodle syllabus canvasapi", "course student"
        ),
    ),
    "commerce": (
        _facet(
            "product advice", "shoppers taste gift suggestions", "catalogue shopify recommender sku", "product shop"
        ),
        _facet("stock control", "shortage reorder shelves demand", "inventory barcode wms supplier", "stock order"),
        _facet(
            "review mining", "complaints sentiment opinions loyalty", "nlp classifier polarity survey", "review rating"
        ),
    ),
    "security": (
        _facet("threat hunting", "intruders suspicious breach evidence", "siem yara ioc sigma", "threat attack"),
        _facet(
            "malware triage",
            "infected attachments quarantine family",
            "sandbox disassembler virustotal ghidra",
            "malware binary",
        ),
        _facet(
            "penetration tests", "weaknesses exposed hosts report", "nmap burp exploit fuzzer", "penetration network"
        ),
    ),
    "project planning": (
        _facet("issue tracking", "backlog blockers sprint owners", "jira kanban linear ticket", "issue task"),
        _facet(
            "calendar sync",
            "meetings availability timezone reschedule",
            "caldav ical scheduler freebusy",
            "calendar meeting",
        ),
        _facet(
            "requirement writing",
            "stakeholders stories acceptance scope",
            "confluence template traceability uml",
            "requirement project",
        ),
    ),
}

# Category of task -> its subcategories.
TASK_CATEGORIES = {
    "Create": ("Drafting", "Designing", "Generating", "Composing"),
    "Understand": ("Explaining", "Summarising", "Searching", "Comparing"),
    "Decide": ("Forecasting", "Ranking", "Scheduling", "Diagnosing"),
    "Operate": ("Automating", "Supervising", "Repairing", "Steering"),
}
# Language -> relative frequency among servers and among tasks. Servers lean on few, tasks spread.
LANGUAGES: dict[str, tuple[float, float]] = {
    "Python": (40, 10),
    "TypeScript": (25, 9),
    "JavaScript": (15, 8),
    "Go": (7, 9),
    "Rust": (4, 8),
    "Java": (3, 8),
    "C#": (2, 8),
    "Kotlin": (1, 8),
    "Swift": (1, 8),
    "Ruby": (1, 8),
    "PHP": (1, 8),
    "C++": (1, 8),
}
SIDE_LANGUAGES = ("Dockerfile", "Shell", "Makefile", "HTML")
LICENCES = ("MIT license", "Apache-2.0 license", "GPL-3.0 license", "MIT License", "View license")
SYSTEMS = ("macOS,Windows,Linux", "macOS", "Linux", "macos,windows")
TASK_VERBS = ("Improve", "Automate", "Plan", "Investigate", "Simplify", "Track", "Prototype", "Rework")
SERVER_VERBS = ("query", "drive", "inspect", "manage", "read", "call", "control", "combine")
THEME_ENDINGS = ("", " for small teams", " at scale", " in public services")
SYLLABLES = tuple(first + vowel for first in "bcdfgklmnprstv" for vowel in "aeio")
