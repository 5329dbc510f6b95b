"""Short texts in several scripts, written to be measured: what a drafter's vocabulary is worth differs between them."""

from __future__ import annotations

ENGLISH = """\
The harbor was quiet when the first boats came in. Nobody spoke much: the catch was weighed, 312 kilograms in all, and \
carried up the hill before sunrise. "We'll be back on Thursday," she said, "unless the weather turns." By noon the \
nets were mended and the whole village smelled of salt, smoke and fresh bread.
"""

PYTHON = '''\
def heaviest(catches: list[tuple[str, float]], limit: int = 3) -> list[str]:
    """Names of the boats with the heaviest catches, the heaviest first."""
    totals = {}
    for boat, kilograms in catches:
        if kilograms < 0:
            raise ValueError(f"{boat} weighs less than nothing: {kilograms}")
        totals[boat] = totals.get(boat, 0.0) + kilograms
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return [boat for boat, _ in ranked[:limit]]
'''

RUSSIAN = """\
Утром в порту было тихо. Первые лодки вернулись ещё до рассвета, и рыбу сразу взвесили: всего вышло 312 килограммов. \
«Мы придём в четверг, если погода не испортится», — сказала она. К полудню сети были починены, и вся деревня пахла \
солью, дымом и свежим хлебом.
"""

CHINESE = """\
清晨的港口很安静。第一批渔船在日出之前就回来了，大家马上把鱼称好，一共312公斤，然后抬上山去。\
她说：“只要天气不变，我们星期四再来。”到了中午，渔网都补好了，整个村子里都是盐、烟和新鲜面包的味道。
"""

HINDI = """\
सुबह बंदरगाह शांत था। पहली नावें सूरज निकलने से पहले ही लौट आईं और मछलियाँ तुरंत तौली गईं: कुल 312 किलो। \
उसने कहा, "अगर मौसम ठीक रहा, तो हम गुरुवार को फिर आएँगे।" दोपहर तक जाल सुधार लिए गए और पूरे गाँव में नमक, धुएँ \
और ताज़ी रोटी की महक फैल गई।
"""

ARABIC = """\
كان الميناء هادئا في الصباح. عادت القوارب الأولى قبل شروق الشمس، ووزن السمك على الفور: 312 كيلوغراما. \
قالت: «سنعود يوم الخميس إذا بقي الطقس جيدا». وعند الظهر كانت الشباك قد أصلحت، وفاحت في القرية كلها رائحة الملح \
والدخان والخبز الطازج.
"""

EMOJI = """\
up before the sun 🌅 boats are in ⛵🐟🐟🐟 312 kg, new record 🎉💪🏽 nets mended 🪡✅ bread in the oven 🍞🔥 \
thursday again if it stays dry 🤞🌤️☔ dinner with everybody 👩‍👩‍👧‍👦🍲❤️ good night 😴🌙
"""

SAMPLES = {
    "English": ENGLISH,
    "Python": PYTHON,
    "Russian": RUSSIAN,
    "Chinese": CHINESE,
    "Hindi": HINDI,
    "Arabic": ARABIC,
    "emoji": EMOJI,
}
