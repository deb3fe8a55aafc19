"""Write documents and questions about animals from WordNet, as example files of a user: corpus.jsonl and
questions.jsonl.

python scripts/examples/wordnet_documents.py FOLDER [/usr/share/wordnet]    # WordNet: apt-get install wordnet-base
"""

import json
import re
import sys
from pathlib import Path

folder, wordnet = Path(sys.argv[1]), Path([*sys.argv, "/usr/share/wordnet"][2])
lines = [line for line in (wordnet / "data.noun").read_text().splitlines() if not line.startswith(" ")]
names = {line.split()[0]: line.split()[4].replace("_", " ") for line in lines}
animals = {}
for line in lines:
    fields, gloss = line.split(" | ")[0].split(), line.split(" | ")[1].split(";")[0].strip()
    kind = names.get(fields[fields.index("@") + 1]) if "@" in fields else None
    if fields[1] == "05" and kind and re.fullmatch("[a-z]{3,12}", fields[4]) and 5 <= len(gloss.split()) <= 16:
        animals.setdefault(fields[4], (kind, gloss))
regions = {name: re.search(r"\b(?:of|in) (?:the )?((?:[A-Z][a-z]+ ?)+)", gloss) for name, (_, gloss) in animals.items()}
chosen = sorted(animals, key=lambda name: (not regions[name], name[::-1]))[:400]
rows = []
for number, name in enumerate(sorted(chosen)):
    kind, gloss = animals[name]
    asked = {"name": (f"Which animal is this: {gloss}?", name), "kind": (f"What kind of animal is a {name}?", kind)}
    if region := regions[name]:
        asked["region"] = (f"Where does the {name} live?", region[1].strip())
    question, answer = list(asked.values())[number % len(asked)]
    rows.append({"id": f"q{number}", "question": question, "answers": [answer]})
passages = [{"id": n, "title": n, "text": f"{animals[n][1]}; a kind of {animals[n][0]}"} for n in chosen]
folder.mkdir(parents=True, exist_ok=True)
for file, written in (("questions.jsonl", rows), ("corpus.jsonl", passages)):
    (folder / file).write_text("".join(json.dumps(row) + "\n" for row in written))
