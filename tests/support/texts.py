"""Short texts in several scripts, for what tokenizers make of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

ROUNDS = (1, 3, 1, 2, 5, 1, 1, 4)  # tokens that are committed at a time

ENGLISH = """\
The river had been rising since Tuesday, and by noon the lower meadow was under water. Two farmers from the village \
moved their sheep to the hill behind the church, where the grass was short but dry. "It was worse in my \
grandfather's time," one of them said, although nobody could remember how much worse. In the evening the rain \
stopped. The next morning a thin, pale light lay over the fields, and children counted 17 ducks where the road used \
to be. A letter of 3 May 1954, found years later, says that the bridge wasn't repaired until autumn, at a cost of \
1,250 pounds. Whoever crossed it after that paid a penny, and those who couldn't walked around by the mill.

First, heat the oven to 180 degrees. Mix flour, sugar and butter until the dough holds together; if it's too dry, add \
a spoonful of milk. Let it rest for half an hour, then roll it out as thin as a coin.
"""

CODE = '''\
from collections import Counter

def most_common_words(path: str, limit: int = 10) -> list[tuple[str, int]]:
    """Return the `limit` most frequent words of a text file."""
    counts: Counter[str] = Counter()
    with open(path, encoding="utf-8") as file:
        for line in file:
            counts.update(word.strip(".,;:!?").lower() for word in line.split())
    return counts.most_common(limit)

class Matrix:
    def __init__(self, rows, cols, fill=0.0):
        self.rows, self.cols = rows, cols
        self.data = [[fill] * cols for _ in range(rows)]

    def __matmul__(self, other):
        if self.cols != other.rows:
            raise ValueError(f"{self.rows}x{self.cols} @ {other.rows}x{other.cols}")
        result = Matrix(self.rows, other.cols)
        for i in range(self.rows):
            for j in range(other.cols):
                result.data[i][j] = sum(self.data[i][k] * other.data[k][j] for k in range(self.cols))
        return result

static int find(const uint8_t *buf, size_t len, uint8_t c) {
\tfor (size_t i = 0; i < len; i++) {
\t\tif (buf[i] == c) return (int)i;
\t}
\treturn -1;  /* not found */
}

SELECT name, COUNT(*) AS orders FROM customers JOIN orders USING (customer_id) WHERE total >= 99.95 GROUP BY name;
{"id": 4821, "tags": ["new", "sale"], "price": 12.5, "stock": null}
'''

RUSSIAN = """\
С самого утра шёл дождь, и дорога к станции превратилась в сплошную грязь. Старый почтальон, который двадцать лет \
носил письма в соседние деревни, решил в этот день никуда не выходить. Он растопил печь, поставил чайник и сел у окна \
читать вчерашнюю газету. На третьей странице писали о новом мосте через реку: строительство обещали закончить к \
осени. «Посмотрим», — сказал он вслух и перевернул страницу.

Вечером пришла соседка и принесла пирог с яблоками. Они долго разговаривали о погоде, о детях, уехавших в город, и о \
том, что зимой надо будет чинить крышу. Сколько это стоит, никто точно не знал, но думали, что не меньше пятнадцати \
тысяч рублей. Когда дождь наконец кончился, над лесом появилась радуга. Необыкновенно красивая, она держалась почти \
четверть часа. Электричество в доме включили только после девяти.
"""

CHINESE = """\
清晨的市场已经很热闹了。卖菜的老人把白菜和萝卜摆得整整齐齐，旁边的年轻人正在切豆腐。空气里有刚出炉的烧饼的香味，孩子们拉着母亲的手，\
吵着要买糖葫芦。我走到河边，看见几个渔民在修补渔网。他们说今年的鱼比去年少，因为上游新建了一座水电站。不过秋天雨水多，情况也许会好起来。

学校的图书馆在一九八六年建成，收藏了三万多册书籍。管理员每天下午四点开始整理书架，把学生还回来的书放到原来的位置。她最喜欢的是关于古代\
建筑的那一套，里面有许多手绘的插图。有一次，一位教授借走了其中一册，过了两年才归还，书里夹着一片干枯的银杏叶。如果你需要计算两个数的最大\
公约数，可以使用辗转相除法：用较大的数除以较小的数，再用余数继续，直到余数为零。
"""

HINDI = """\
गाँव के पास एक पुराना बरगद का पेड़ है, जिसके नीचे शाम को लोग बैठकर बातें करते हैं। कल वहाँ एक अध्यापक आए थे, जो बच्चों को \
तारों के बारे में बता रहे थे। उन्होंने कहा कि जो तारे हमें आज दिखाई देते हैं, उनकी रोशनी हज़ारों वर्ष पहले चली थी। बच्चे चुपचाप \
सुनते रहे और फिर बहुत से प्रश्न पूछने लगे।

इस वर्ष वर्षा अच्छी हुई, इसलिए किसान प्रसन्न हैं। गेहूँ की फसल पिछले साल से लगभग बीस प्रतिशत अधिक होने की आशा है। बाज़ार में सब्ज़ियों \
के दाम भी कम हो गए हैं। मेरी दादी कहती हैं कि अचार बनाने का यही सही समय है; वे कच्चे आम काटकर धूप में सुखाती हैं और उनमें नमक, हल्दी \
और सरसों का तेल मिलाती हैं। दो सप्ताह के बाद अचार खाने के लिए तैयार हो जाता है। क्या आपने कभी ऐसा अचार खाया है?
"""

ARABIC = """\
في صباح كل يوم جمعة يفتح النجار دكانه متأخراً، ثم يشرب القهوة مع جيرانه أمام الباب. كان والده نجاراً \
أيضاً، وقد علّمه كيف يختار الخشب الجيد وكيف يصقله حتى يصير ناعماً كالحرير. قبل عشر سنوات صنع مكتبة \
كبيرة لمدرسة القرية، وما زالت في مكانها إلى اليوم.

تقع المدينة القديمة على ضفة النهر، وتحيط بها أسوار عالية بُنيت قبل ستة قرون. يأتي إليها الزوار في \
فصل الربيع ليروا الأسواق والحدائق والبيوت ذات النوافذ الملونة. قال لنا الدليل إن بعض هذه البيوت يزيد \
عمرها على ثلاثمئة عام، وإن أصحابها يرممونها كل سنة. هل تعلم أن المسافة بين البوابتين لا تتجاوز \
كيلومتراً واحداً؟ في المساء تضيء المصابيح الشوارع الضيقة، ويسمع المرء أصوات الباعة وهم يجمعون \
بضائعهم.
"""

EMOJI = """\
Good morning ☀️! Coffee first ☕, then the train 🚆 to work 😴. Lunch: 🍕 or 🥗? Let's ask the team 👩‍💻👨🏽‍💻🧑‍🔬.
We won the match 🏆⚽🎉🎉 3–1, what a night 🌃🔥! My sister just had a baby 👶🏻💕 and everyone is happy 😊😊🥳.
Weather: ⛅ → 🌧️ → 🌈. Flags at the office: 🇩🇪 🇫🇷 🇯🇵 🇧🇷 🇮🇳. Thumbs up 👍🏿 if you agree, 👎 if you don't 🤷‍♀️.
🎁 Sale ends tonight ⏰💥: shoes 👟 −50 %, hats 🎩, bags 👜🛍️. ✅ done, ❌ not done, ⚠️ careful, ➡️ next.
🐶🐱🐭🐹🐰🦊🐻🐼🐨🐯🦁🐮🐷🐸🐵 I can't choose 😂🤣. Happy birthday 🎂🎈🎊 dear 👨‍👩‍👧‍👦 family ❤️🧡💛💚💙💜!
"""

TEXTS = {
    "English": ENGLISH,
    "code": CODE,
    "Russian": RUSSIAN,
    "Chinese": CHINESE,
    "Hindi": HINDI,
    "Arabic": ARABIC,
    "emoji": EMOJI,
}


def chunks(ids: Sequence[int], sizes: Sequence[int] = ROUNDS) -> Iterator[Sequence[int]]:
    """Tokens as rounds commit them."""
    start = 0
    for size in itertools.cycle(sizes):
        if start >= len(ids):
            return
        yield ids[start : start + size]
        start += size


QUESTIONS = ("one two three", "four and five", "six or seven", "a list of things", "no more of it", "what is left")
