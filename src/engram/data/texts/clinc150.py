"""CLINC150: requests to an assistant, of 150 intents in ten domains, and some of no intent."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engram.data.dataset import Data
from engram.data.texts.tokenization import make_tokenizer
from engram.errors import bad, check_choice

PARTS = ("train", "val", "test")
OUTSIDE = "clinc150_oos"  # the name of the requests of no intent, as a set of their own
FILE_NAMES = ("data_full.json", "clinc150.json", "clinc150.json.gz", "data_full.json.gz")

# the published list
DOMAINS: dict[str, tuple[str, ...]] = {
    name: tuple(intents.split())
    for name, intents in {
        "banking": """
            freeze_account routing pin_change bill_due pay_bill account_blocked interest_rate
            min_payment bill_balance transfer order_checks balance spending_history transactions
            report_fraud""",
        "credit_cards": """
            replacement_card_duration expiration_date damaged_card improve_credit_score
            report_lost_card card_declined credit_limit_change apr redeem_rewards credit_limit
            rewards_balance application_status credit_score new_card international_fees""",
        "kitchen_and_dining": """
            food_last confirm_reservation how_busy ingredients_list calories nutrition_info recipe
            restaurant_reviews restaurant_reservation meal_suggestion restaurant_suggestion
            cancel_reservation ingredient_substitution cook_time accept_reservations""",
        "home": """
            what_song play_music todo_list_update reminder reminder_update calendar_update
            order_status update_playlist shopping_list calendar next_song order todo_list
            shopping_list_update smart_home""",
        "auto_and_commute": """
            current_location oil_change_when oil_change_how uber traffic tire_pressure
            schedule_maintenance gas mpg distance directions last_maintenance gas_type tire_change
            jump_start""",
        "travel": """
            plug_type travel_notification translate flight_status international_visa timezone
            exchange_rate travel_suggestion travel_alert vaccines lost_luggage book_flight
            book_hotel carry_on car_rental""",
        "utility": """
            weather alarm date find_phone share_location timer make_call calculator definition
            measurement_conversion flip_coin spelling time roll_dice text""",
        "work": """
            pto_request_status next_holiday insurance_change insurance meeting_schedule payday taxes
            income rollover_401k pto_balance pto_request w2 schedule_meeting direct_deposit
            pto_used""",
        "small_talk": """
            who_made_you meaning_of_life who_do_you_work_for do_you_have_pets what_are_your_hobbies
            fun_fact what_is_your_name where_are_you_from goodbye thank_you greeting tell_joke
            are_you_a_bot how_old_are_you what_can_i_ask_you""",
        "meta": """
            change_speed user_name whisper_mode yes change_volume no change_language repeat
            change_accent cancel sync_device change_user_name change_ai_name reset_settings
            maybe""",
    }.items()
}


def is_clinc(path: Path) -> bool:
    """Whether a file or folder holds the set."""
    return _find_file(path) is not None


def _find_file(path: Path) -> Path | None:
    if path.is_file():
        return path if path.name in FILE_NAMES else None
    return next((path / name for name in FILE_NAMES if (path / name).is_file()), None)


def load_clinc(
    path: Path,
    *,
    tokenizer: Any = "words",
    length: int | None = None,
    labels: str = "intent",
    name: str | None = None,
) -> Data:
    """The set from its official ``data_full.json``, as it is or compressed.

    Parameters
    ----------
    tokenizer
        See `Tokenizer`: "words", "minilm", or the path of a ``tokenizer.json``.
    length
        Tokens of a row; those of the longest text of the file if left out, so that requests of no
        intent (the set ``clinc150_oos``) have the same.
    labels
        "intent", 150 classes; or "domain", ten.
    """
    file = _find_file(path)
    if file is None:
        raise bad("data", f"a file {FILE_NAMES[0]}", str(path))
    raw = file.read_bytes()
    found = json.loads(gzip.decompress(raw) if file.suffix == ".gz" else raw)
    pairs = {part: _read_part(found, part, file) for part in _wanted(found)}
    check_choice("labels", labels, ["intent", "domain"])
    reader = make_tokenizer(tokenizer)
    if length is None:
        every = [text for part in pairs.values() for text, _ in part]
        length = reader.encode(every).shape[1]
    outside = name == OUTSIDE
    chosen = {part: pairs[f"oos_{part}" if outside else part] for part in PARTS}
    texts = {part: [text for text, _ in rows] for part, rows in chosen.items()}
    intents = {part: [intent for _, intent in rows] for part, rows in chosen.items()}
    domain_of = {one: domain for domain, members in DOMAINS.items() for one in members}
    options: dict[str, Any] = {}
    if not outside:
        every = [intent for part in ("train", "val", "test") for intent in intents[part]]
        if unknown := sorted(set(every) - set(domain_of)):
            raise bad(str(file), "the 150 intents of CLINC150", f"{unknown[0]!r} among them")
        domains = list(DOMAINS)
        numbers = torch.tensor([domains.index(domain_of[one]) for one in every])
        options = {"attributes": {"domain": numbers},
                   "attribute_names": {"domain": tuple(domains)}}  # fmt: skip
        if labels == "domain":
            intents = {part: [domain_of[one] for one in rows] for part, rows in intents.items()}
        names = list(DOMAINS) if labels == "domain" else sorted(domain_of)
        options["classes"] = [one for one in names if one in {*intents["train"], *intents["test"]}]
    return Data.from_text(
        texts["train"], intents["train"], valid=(texts["val"], intents["val"]),
        test=(texts["test"], intents["test"]), tokenizer=reader, length=length,
        name=name or "clinc150", **options,
    )  # fmt: skip


def _wanted(found: Any) -> tuple[str, ...]:
    parts = (*PARTS, *(f"oos_{part}" for part in PARTS))
    if not isinstance(found, Mapping) or not set(parts) <= set(found):
        got = sorted(found) if isinstance(found, Mapping) else type(found).__name__
        raise bad("data", f"an object with lists {', '.join(parts)}", got)
    return parts


def _read_part(found: Mapping[str, Any], part: str, file: Path) -> list[tuple[str, str]]:
    rows = found[part]
    good = isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == 2 and all(isinstance(one, str) for one in row)
        for row in rows
    )
    if not good or not rows:
        raise bad(f"{part} of {file.name}", "a list of pairs [text, intent]", type(rows).__name__)
    return [(text, intent) for text, intent in rows]
